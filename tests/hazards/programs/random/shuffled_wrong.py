"""A permutation is drawn from a generator that nobody registered."""
import torch

generator = None


def program(device):
    global generator
    generator = torch.Generator(device=device)

    def mixup(x):
        order = torch.randperm(4, generator=generator, device=device)  # hazard: PG601
        return 0.7 * x + 0.3 * x[order]

    return mixup, {"batches": [(torch.randn(4, 3, device=device),) for _ in range(3)]}
