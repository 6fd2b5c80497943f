"""Two buffers take turns under one name: each step reads the other one."""
import torch
from torch import nn


class DoubleBuffer:
    def __init__(self, device):
        self.front, self.back = torch.randn(3, device=device), torch.randn(3, device=device)

    def swap(self):
        self.front, self.back = self.back, self.front


def program(device):
    buffers, model = DoubleBuffer(device), nn.Linear(3, 3).to(device).requires_grad_(False)

    def step():
        return model(buffers.front)  # hazard: PG401

    return step, {"between": buffers.swap}
