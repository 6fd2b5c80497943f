"""The result is written into the input by out=."""
import torch


def program(device):
    shift = torch.ones(4, device=device)

    def step(x):
        torch.add(x, shift, out=x)  # hazard: PG902
        return x.sum()

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}
