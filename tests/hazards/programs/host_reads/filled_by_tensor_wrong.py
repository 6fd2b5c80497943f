"""torch.full() with a value that is a tensor reads it."""
import torch


def program(device):
    def step(x):
        floor = x.min()
        padding = torch.full((2, 4), floor, device=device)  # hazard: PG101, PG301?
        return torch.cat([x, padding])

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}
