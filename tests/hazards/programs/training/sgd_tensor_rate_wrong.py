"""SGD that is not fused makes a number of a tensor learning rate: it reads it."""
import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1, device=device))

    def step(x):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()  # hazard: PG101|PG1001

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}
