"""Weight decay is scheduled in the optimizer's parameter group."""
import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.01)

    def step(x):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()  # hazard: PG301|PG1001

    def between():
        for group in optimizer.param_groups:
            group["weight_decay"] *= 1.5

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)], "between": between}
