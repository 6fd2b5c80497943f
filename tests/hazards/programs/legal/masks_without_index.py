"""Masks that choose values, and do not change shapes."""
import torch


def program(device):
    def step(x):
        mask = x > 0
        y = torch.where(mask, x, 0.1 * x)
        y = y.masked_fill(mask & (x > 2), 2.0)
        return (y * mask).sum() / mask.sum().clamp(min=1), mask.any(), ~mask

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}
