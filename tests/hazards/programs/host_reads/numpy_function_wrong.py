"""A NumPy function is given a tensor."""
import numpy as np
import torch


def program(device):
    def step(x):
        spread = np.asarray(x.square().cpu()).std()  # hazard: PG103
        return x * 2, spread > 0

    return step, {"batches": [(torch.randn(4, device=device),) for _ in range(3)]}
