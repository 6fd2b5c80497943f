"""The scheduler steps inside the step: once, when it is captured."""
import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.9)

    def step(x):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()  # hazard: PG301|PG1001
        scheduler.step()  # hazard: PG803?, PG1001?, PG801?

    # hazard: PG803?
    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}
