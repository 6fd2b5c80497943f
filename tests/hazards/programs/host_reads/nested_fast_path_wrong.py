"""In evaluation, nn.TransformerEncoder drops padding by a nested tensor, whose sizes are in the mask."""
import torch
from torch import nn


def program(device):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, num_layers=1).to(device).eval().requires_grad_(False)
    padding = torch.tensor([[False, False, True, True], [False, False, False, True]], device=device)

    @torch.no_grad()
    def step(x):
        return model(x, src_key_padding_mask=padding)  # hazard: PG101|PG102|PG105|PG1203

    return step, {"batches": [(torch.randn(2, 4, 8, device=device),) for _ in range(3)]}
