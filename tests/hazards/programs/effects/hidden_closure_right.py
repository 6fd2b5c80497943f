"""The tensors of the hidden state are written in place."""
import torch
from torch import nn


def program(device):
    cell = nn.LSTMCell(3, 4).to(device).requires_grad_(False)
    state = (torch.zeros(2, 4, device=device), torch.zeros(2, 4, device=device))

    def step(x):
        for old, new in zip(state, cell(x, state)):
            old.copy_(new)

    return step, {"batches": [(torch.randn(2, 3, device=device),) for _ in range(3)]}
