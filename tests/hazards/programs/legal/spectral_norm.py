"""A parametrization that iterates on buffers in place: spectral normalization."""
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm


def program(device):
    model = nn.Sequential(spectral_norm(nn.Linear(4, 4)), nn.LeakyReLU(), nn.Linear(4, 1)).to(device)

    def step(x):
        model.zero_grad()
        model(x).mean().backward()

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}
