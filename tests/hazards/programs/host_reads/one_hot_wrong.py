"""one_hot() without the number of classes reads the largest label."""
import torch
from torch.nn import functional as F


def program(device):
    weight = torch.randn(5, 3, device=device)

    def step(y):
        one_hot = F.one_hot(y)  # hazard: PG101|PG105
        return one_hot.float() @ weight

    return step, {"batches": [(torch.tensor([0, 4, n], device=device),) for n in range(3)]}
