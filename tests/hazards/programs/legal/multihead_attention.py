"""nn.MultiheadAttention with a padding mask and averaged weights."""
import torch
from torch import nn


def program(device):
    attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True).to(device)
    padding = torch.tensor([[False, False, True], [False, True, True]], device=device)

    def step(x):
        attention.zero_grad()
        y, weights = attention(x, x, x, key_padding_mask=padding)
        y.square().mean().backward()
        return weights.detach()

    return step, {"batches": [(torch.randn(2, 3, 8, device=device),) for _ in range(3)]}
