"""A NumPy generator of one's own chooses the patch that is cut out."""
import numpy as np
import torch


class Cutout:
    def __init__(self):
        self.rng = np.random.default_rng(3)

    def __call__(self, images):
        top = int(self.rng.integers(0, 6))  # hazard: PG604
        images = images.clone()
        images[..., top : top + 2, :].zero_()  # hazard: PG301|PG401?
        return images


def program(device):
    return Cutout(), {"batches": [(torch.rand(2, 3, 8, 8, device=device),) for _ in range(3)]}
