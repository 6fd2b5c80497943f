"""NCCL's asynchronous error handling is switched off before the process group is made."""
import os

import torch
import torch.distributed as dist
from torch import nn

CUDA_ONLY = True


def program(device):
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    model = nn.Linear(4, 4).to(device).requires_grad_(False)

    def step(x):
        y = model(x)
        dist.all_reduce(y)
        return y

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}


def cleanup():
    dist.destroy_process_group()
    del os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"]
