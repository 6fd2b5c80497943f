"""A condition that begins with a flag of the host goes on with a tensor."""
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.check = True

    def forward(self, x, mask):
        if self.check and not mask.any():  # hazard: PG102
            return x
        return self.linear(x) * mask


def program(device):
    model = Net().to(device).requires_grad_(False)
    batches = [(torch.randn(3, 4, device=device), torch.ones(3, 4, device=device)) for _ in range(3)]
    return model, {"batches": batches}
