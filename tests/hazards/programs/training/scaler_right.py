"""A fused optimizer takes from the scaler, on the device, whether to skip the update."""
import torch
from torch import nn


def program(device):
    kind = torch.device(device).type
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    scaler = torch.amp.GradScaler(kind, init_scale=16.0)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}
