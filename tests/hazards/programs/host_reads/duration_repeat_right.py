"""The length of the result is given, so nobody has to add up the durations."""
import torch
from torch import nn


class LengthRegulator(nn.Module):
    def __init__(self, frames):
        super().__init__()
        self.frames = frames

    def forward(self, phonemes, durations):
        return torch.repeat_interleave(phonemes, durations, dim=0, output_size=self.frames)


def program(device):
    model = LengthRegulator(frames=8).to(device)
    durations = torch.tensor([1, 3, 2, 2], device=device)
    return model, {"batches": [(torch.randn(4, 6, device=device), durations) for _ in range(3)]}
