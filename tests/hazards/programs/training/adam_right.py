"""A fused, capturable Adam counts its steps on the device."""
import torch
from torch import nn
from torch.nn import functional as F


def program(device):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True, capturable=True)

    def train_step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    batches = [(torch.randn(8, 4, device=device), torch.randint(0, 3, (8,), device=device)) for _ in range(3)]
    return train_step, {"batches": batches}
