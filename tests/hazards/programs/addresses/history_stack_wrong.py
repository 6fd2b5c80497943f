"""Frames of a game are kept in a deque, and stacked in the step."""
from collections import deque

import torch
from torch import nn


def program(device):
    policy = nn.Linear(12, 2).to(device).requires_grad_(False)
    frames = deque([torch.zeros(4, device=device) for _ in range(3)], maxlen=3)

    def act():
        return policy(torch.cat(list(frames)))  # hazard: PG401

    def between():
        frames.append(torch.randn(4, device=device))

    return act, {"between": between}
