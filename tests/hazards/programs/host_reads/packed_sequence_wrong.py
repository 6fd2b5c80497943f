"""Packing a padded sequence takes its lengths to the host."""
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence


def program(device):
    rnn = nn.GRU(3, 4, batch_first=True).to(device).requires_grad_(False)
    lengths = torch.tensor([4, 2], device=device)

    def step(x):
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True)  # hazard: PG103, PG101?, PG201?, PG202?
        return rnn(packed)[1]  # hazard: PG201?, PG101?

    return step, {"batches": [(torch.randn(2, 4, 3, device=device),) for _ in range(3)]}
