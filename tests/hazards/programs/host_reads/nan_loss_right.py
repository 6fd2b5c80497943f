"""Whether a loss was NaN is kept on the device, to be read now and then."""
import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    was_nan = torch.zeros((), dtype=torch.bool, device=device)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        was_nan.logical_or_(torch.isnan(loss.detach()))
        loss.backward()
        optimizer.step()

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}
