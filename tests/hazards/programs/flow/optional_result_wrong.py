"""The step returns the attention weights, too, when somebody asked for them."""
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(4, 4)
        self.return_weights = False

    def forward(self, x):
        weights = (self.query(x) @ x.transpose(-1, -2)).softmax(-1)
        y = weights @ x  # hazard: PG505*, PG501?
        if self.return_weights:
            return y, weights  # hazard: PG505*
        return y  # hazard: PG505*


def program(device):
    model = Attention().to(device)

    def between():
        model.return_weights = not model.return_weights

    # hazard: PG505*, PG304?, PG501?
    return model, {"batches": [(torch.randn(2, 3, 4, device=device),) for _ in range(3)], "between": between}
