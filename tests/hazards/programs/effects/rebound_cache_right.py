"""The KV cache has its full size from the start; a position tensor says where the token goes."""
import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, length=8):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(4, 4) for _ in range(3))
        self.register_buffer("keys", torch.zeros(1, length, 4))
        self.register_buffer("values", torch.zeros(1, length, 4))
        self.register_buffer("position", torch.zeros(1, dtype=torch.long))
        self.register_buffer("places", torch.arange(length))

    def forward(self, x):
        self.keys.index_copy_(1, self.position, self.k(x))
        self.values.index_copy_(1, self.position, self.v(x))
        seen = self.places <= self.position
        y = F.scaled_dot_product_attention(self.q(x), self.keys, self.values, attn_mask=seen)
        self.position.add_(1)
        return y


def program(device):
    model = Attention().to(device).requires_grad_(False)
    return model, {"batches": [(torch.randn(1, 1, 4, device=device),) for _ in range(3)]}
