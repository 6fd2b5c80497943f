"""Tensors as bounds, exponents, weights and fillings stay on the device."""
import torch


def program(device):
    low, high = torch.full((), -1.0, device=device), torch.full((), 1.0, device=device)
    weight = torch.full((), 0.25, device=device)

    def step(x):
        y = torch.clamp(x, low, high).abs() ** weight
        y = torch.lerp(y, x, weight)
        y[0] = high
        y[:, 1] = low * 2
        return torch.where(y > weight, y, low)

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}
