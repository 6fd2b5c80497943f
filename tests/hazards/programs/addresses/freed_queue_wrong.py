"""The step takes its noise from a queue, and nobody holds it afterwards."""
from collections import deque

import torch


def program(device):
    noise = deque(torch.randn(3, device=device) for _ in range(40))

    def step(x):
        sample = noise.popleft()  # hazard: PG801*
        return x + sample  # hazard: PG401|PG404, PG801*

    return step, {"batches": [(torch.randn(3, device=device),) for _ in range(3)]}
