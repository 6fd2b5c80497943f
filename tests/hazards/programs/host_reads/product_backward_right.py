"""The product is the exponential of a sum of logarithms."""
import torch
from torch import nn
from torch.nn import functional as F


class ProductOfExperts(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.Linear(4, 3)

    def forward(self, x):
        return F.logsigmoid(self.experts(x)).sum().exp()


def program(device):
    model = ProductOfExperts().to(device)

    def step(x):
        model.zero_grad()
        loss = -model(x)
        loss.backward()
        return loss.detach()

    return step, {"batches": [(torch.randn(2, 4, device=device),) for _ in range(3)]}
