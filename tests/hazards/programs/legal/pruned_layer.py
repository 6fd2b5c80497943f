"""A pruned layer multiplies its weight by a mask before each forward."""
import torch
from torch import nn
from torch.nn.utils import prune


def program(device):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)).to(device)
    prune.l1_unstructured(model[0], "weight", amount=0.5)

    def step(x):
        model.zero_grad()
        model(x).mean().backward()

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}
