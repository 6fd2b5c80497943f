"""Gradients accumulate over a fixed number of microbatches inside the step."""
import torch
from torch import nn

MICROBATCHES = 3


def program(device):
    model = nn.Sequential(nn.Linear(4, 4), nn.SiLU(), nn.Linear(4, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        losses = []
        for part in x.tensor_split(MICROBATCHES):
            loss = model(part).square().mean() / MICROBATCHES
            loss.backward()
            losses.append(loss.detach())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return torch.stack(losses).sum()

    return step, {"batches": [(torch.randn(6, 4, device=device),) for _ in range(3)]}
