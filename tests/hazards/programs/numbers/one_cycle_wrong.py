"""OneCycleLR changes learning rate and momentum of SGD, both numbers of the host."""
import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=100)

    def step(x):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()  # hazard: PG301|PG1001

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)], "between": lambda: scheduler.step()}
