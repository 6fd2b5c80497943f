"""The attention mask is an attribute that the loop replaces for every batch."""
import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(4, 12)
        self.mask = None

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)  # hazard: PG401


def program(device):
    model = Attention().to(device).requires_grad_(False)

    def new_mask():
        model.mask = torch.randn(2, 5, 5, device=device)

    new_mask()
    return model, {"batches": [(torch.randn(2, 5, 4, device=device),) for _ in range(3)], "between": new_mask}
