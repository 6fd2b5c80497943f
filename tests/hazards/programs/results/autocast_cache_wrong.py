"""Autocast is switched on and off by hand, and nobody empties its cache: the weights stay as they were first converted."""
import torch
from torch import nn


def program(device):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kind = torch.device(device).type

    def step(x):
        optimizer.zero_grad()
        torch.set_autocast_enabled(kind, True)
        loss = model(x).float().square().mean()  # hazard: PG906
        torch.set_autocast_enabled(kind, False)
        loss.backward()
        optimizer.step()

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}


def cleanup():
    torch.clear_autocast_cache()
