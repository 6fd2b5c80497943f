"""The permutation is drawn from the default generator, which every capture knows."""
import torch


def program(device):
    def mixup(x):
        order = torch.rand(4, device=device).argsort()
        return 0.7 * x + 0.3 * x[order]

    return mixup, {"batches": [(torch.randn(4, 3, device=device),) for _ in range(3)]}
