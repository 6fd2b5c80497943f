"""A hidden state in a closure is rebound with nonlocal."""
import torch
from torch import nn


def program(device):
    cell = nn.LSTMCell(3, 4).to(device).requires_grad_(False)
    state = (torch.zeros(2, 4, device=device), torch.zeros(2, 4, device=device))

    def step(x):
        nonlocal state
        state = cell(x, state)  # hazard: PG401|PG802

    return step, {"batches": [(torch.randn(2, 3, device=device),) for _ in range(3)]}
