"""A module that is to be graphed has a forward hook."""
import torch
from torch import nn


def double(module, inputs, output):
    return output * 2


def program(device):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).to(device)
    model.register_forward_hook(double)  # hazard: PG1004*
    # hazard: PG1004*
    return model, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}
