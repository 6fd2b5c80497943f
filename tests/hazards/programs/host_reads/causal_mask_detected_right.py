"""Told that the mask is causal, nn.TransformerEncoder does not compare."""
import torch
from torch import nn


def program(device):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False).to(device)
    mask = nn.Transformer.generate_square_subsequent_mask(4, device=device)

    def step(x):
        model.zero_grad()
        y = model(x, mask=mask, is_causal=True)
        y.square().mean().backward()

    return step, {"batches": [(torch.randn(2, 4, 8, device=device),) for _ in range(3)]}
