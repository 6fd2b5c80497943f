"""prod() is harmless forward; its backward looks for zeros on the host."""
import torch
from torch import nn


class ProductOfExperts(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.Linear(4, 3)

    def forward(self, x):
        return self.experts(x).sigmoid().prod()  # hazard: PG111*


def program(device):
    model = ProductOfExperts().to(device)

    def step(x):
        model.zero_grad()
        loss = -model(x)
        loss.backward()  # hazard: PG111*
        return loss.detach()

    return step, {"batches": [(torch.randn(2, 4, device=device),) for _ in range(3)]}
