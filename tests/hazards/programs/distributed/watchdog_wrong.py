"""NCCL's asynchronous error handling is on while the step is captured."""
import os

import torch
import torch.distributed as dist
from torch import nn

CUDA_ONLY = True


def program(device):
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "1"
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    model = nn.Linear(4, 4).to(device).requires_grad_(False)

    def step(x):
        y = model(x)
        dist.all_reduce(y)  # hazard: PG1101*
        return y

    # hazard: PG1101*
    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}


def cleanup():
    dist.destroy_process_group()
    del os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"]
