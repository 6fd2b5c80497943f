"""Frames are kept in one tensor, which is shifted in place."""
import torch
from torch import nn


def program(device):
    policy = nn.Linear(12, 2).to(device).requires_grad_(False)
    frames = torch.zeros(3, 4, device=device)

    def act():
        return policy(frames.flatten())

    def between():
        frames.copy_(frames.roll(-1, 0))
        frames[-1].copy_(torch.randn(4, device=device))

    return act, {"between": between}
