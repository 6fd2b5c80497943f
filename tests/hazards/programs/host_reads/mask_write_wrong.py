"""Noise is written through a boolean mask, one value for each true element."""
import torch


def program(device):
    noise = torch.randn(3, 4, device=device)

    def corrupt(x):
        broken = x.abs() > 1.0
        y = x.clone()
        y[broken] = noise[broken] + 1  # hazard: PG106
        return y

    return corrupt, {"batches": [(torch.randn(3, 4, device=device) * 2,) for _ in range(3)]}
