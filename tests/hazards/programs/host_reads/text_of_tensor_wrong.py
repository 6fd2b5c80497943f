"""A name for a report is made with str() of a tensor."""
import torch


def program(device):
    def step(x):
        name = "mean " + str(x.mean())  # hazard: PG104|PG101
        return x * 2, len(name) > 0

    return step, {"batches": [(torch.randn(4, device=device),) for _ in range(3)]}
