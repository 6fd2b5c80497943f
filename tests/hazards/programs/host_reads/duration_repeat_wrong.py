"""Phonemes are repeated by predicted durations, whose sum the host has to read."""
import torch
from torch import nn


class LengthRegulator(nn.Module):
    def forward(self, phonemes, durations):
        return torch.repeat_interleave(phonemes, durations, dim=0)  # hazard: PG107


def program(device):
    model = LengthRegulator().to(device)
    durations = torch.tensor([1, 3, 2, 2], device=device)
    return model, {"batches": [(torch.randn(4, 6, device=device), durations) for _ in range(3)]}
