"""A thread of a pool does part of the step: on its own stream, and out of the capture's sight."""
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

CUDA_ONLY = True


def program(device):
    model = nn.Linear(4, 4).to(device).requires_grad_(False)
    pool = ThreadPoolExecutor(max_workers=1)

    def step(x):
        future = pool.submit(model, x)  # hazard: PG701|PG703|PG707*
        return future.result() + 1  # hazard: PG701|PG703|PG707*

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}
