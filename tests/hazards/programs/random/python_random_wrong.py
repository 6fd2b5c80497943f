"""An augmentation flips the images by Python's random numbers."""
import random

import torch


def program(device):
    def augment(images):
        angle = random.uniform(-1, 1)  # hazard: PG604
        return images + angle  # hazard: PG301?

    return augment, {"batches": [(torch.rand(2, 3, 4, 4, device=device),) for _ in range(3)]}
