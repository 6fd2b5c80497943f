"""NCCL's asynchronous error handling is switched off before the process group is made."""
import os

import torch
import torch.distributed as dist
from torch import nn

CUDA_ONLY = True


def program(device):
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    kind = torch.device(device).type
    dist.init_process_group("nccl" if kind == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = nn.Linear(4, 1).to(device)

    def step(x):
        model.zero_grad(set_to_none=False)
        model(x).square().mean().backward()

    def between():
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)

    batches = [(torch.randn(3, 4, device=device),) for _ in range(3)]
    return step, {"batches": batches, "between": between}


def cleanup():
    dist.destroy_process_group()
    del os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"]
