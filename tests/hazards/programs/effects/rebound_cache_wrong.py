"""The KV cache grows by torch.cat and is rebound: another tensor, and another shape, for each token."""
import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(4, 4) for _ in range(3))
        self.keys = self.values = None

    def forward(self, x):
        self.keys = torch.cat([self.keys, self.k(x)], dim=1)  # hazard: PG401|PG502|PG802
        self.values = torch.cat([self.values, self.v(x)], dim=1)  # hazard: PG401|PG502|PG802
        return F.scaled_dot_product_attention(self.q(x), self.keys, self.values)  # hazard: PG502?


def program(device):
    model = Attention().to(device).requires_grad_(False)
    model.keys, model.values = torch.zeros(1, 1, 4, device=device), torch.zeros(1, 1, 4, device=device)
    return model, {"batches": [(torch.randn(1, 1, 4, device=device),) for _ in range(3)]}
