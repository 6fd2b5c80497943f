"""The number of rounds of refinement grows as training goes on."""
import torch
from torch import nn


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(4, 4)
        self.rounds = 1

    def forward(self, x):
        state = x
        for _ in range(self.rounds):
            state = torch.tanh(self.cell(state) + x)  # hazard: PG501*
        return state.mean()  # hazard: PG501*


def program(device):
    model = Recurrent().to(device)

    def between():
        model.rounds += 1

    # hazard: PG304?
    return model, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)], "between": between}
