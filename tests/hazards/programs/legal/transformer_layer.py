"""An encoder layer of torch.nn with a padding mask."""
import torch
from torch import nn


def program(device):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True).to(device)

    def step(x, padding):
        layer.zero_grad()
        y = layer(x, src_key_padding_mask=padding)
        y.square().mean().backward()
        return y.detach()

    padding = torch.tensor([[False, False, True], [False, True, True]], device=device)
    return step, {"batches": [(torch.randn(2, 3, 8, device=device), padding) for _ in range(3)]}
