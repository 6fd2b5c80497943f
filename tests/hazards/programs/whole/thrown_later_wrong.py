"""The step fails in the third iteration, when its data runs out."""
import torch


def program(device):
    data = iter([torch.randn(3, device=device) for _ in range(2)])

    def step(x):
        return x + next(data)  # hazard: PG1202, PG401?, PG404?, PG803?

    # hazard: PG803?
    return step, {"batches": [(torch.randn(3, device=device),) for _ in range(3)]}
