"""The loss is summed up on the device, and read after the replays."""
import torch
from torch import nn
from torch.nn import functional as F


def program(device):
    model = nn.Linear(4, 3).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    running_loss = torch.zeros((), device=device)
    batches = [(torch.randn(8, 4, device=device), torch.randint(0, 3, (8,), device=device)) for _ in range(3)]

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        running_loss.add_(loss.detach())

    return step, {"batches": batches}
