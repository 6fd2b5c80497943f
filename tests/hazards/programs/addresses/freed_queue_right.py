"""The loop copies the next noise from the queue into a tensor that stays."""
from collections import deque

import torch


def program(device):
    noise = deque(torch.randn(3, device=device) for _ in range(40))
    sample = torch.zeros(3, device=device)

    def between():
        sample.copy_(noise.popleft())

    def step(x):
        return x + sample

    return step, {"batches": [(torch.randn(3, device=device),) for _ in range(3)], "between": between}
