"""The attention mask is an input of the step, as the batch is."""
import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(4, 12)

    def forward(self, x, mask):
        q, k, v = self.qkv(x).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def program(device):
    model = Attention().to(device).requires_grad_(False)
    batches = [(torch.randn(2, 5, 4, device=device), torch.randn(2, 5, 5, device=device)) for _ in range(3)]
    return model, {"batches": batches}
