"""The old weight normalization computes a module's weight in a hook before each forward."""
import warnings

import torch
from torch import nn


def program(device):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer = nn.utils.weight_norm(nn.Linear(4, 4))
    layer.to(device)
    head = nn.Linear(4, 1).to(device)

    def step(x):
        layer.zero_grad()
        head.zero_grad()
        head(layer(x).relu()).mean().backward()

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}
