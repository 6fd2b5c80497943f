"""The order of augmentations is shuffled by Python."""
import random

import torch


def program(device):
    scales = [0.5, 2.0, 3.0]

    def augment(x):
        order = random.sample(range(3), 3)  # hazard: PG604
        for number in order:
            x = x * scales[number] + number  # hazard: PG301?
        return x

    return augment, {"batches": [(torch.rand(2, 3, device=device),) for _ in range(3)]}
