"""A region of autocast begins and ends inside the step: where it ends, the copies are dropped."""
import torch
from torch import nn


def program(device):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kind = torch.device(device).type

    def step(x):
        optimizer.zero_grad()
        with torch.autocast(kind, dtype=torch.bfloat16):
            loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}
