"""Static inputs are in a dictionary, whose entry the loop assigns instead of filling it."""
import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 2).to(device).requires_grad_(False)
    inputs = {"pixels": torch.randn(3, 4, device=device), "scale": torch.ones(1, device=device)}

    def step():
        return model(inputs["pixels"]) * inputs["scale"]  # hazard: PG401

    def between():
        inputs["scale"] = inputs["scale"] * 2

    return step, {"between": between}
