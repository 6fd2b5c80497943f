"""The loss is returned; the progress bar reads it after the replay."""
import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}
