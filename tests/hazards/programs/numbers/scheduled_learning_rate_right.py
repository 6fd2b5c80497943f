"""The learning rate is a tensor on the device, which the scheduler fills."""
import torch
from torch import nn
from torch.nn import functional as F


def program(device):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).to(device)
    lr = torch.tensor(0.1, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, fused=True)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)

    def train_step(x, y):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    batches = [(torch.randn(8, 4, device=device), torch.randint(0, 3, (8,), device=device)) for _ in range(3)]
    return train_step, {"batches": batches, "between": scheduler.step}
