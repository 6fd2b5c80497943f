"""DistributedDataParallel was made on the default stream, where its hooks then stay."""
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CUDA_ONLY = True


def program(device):
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    model = DistributedDataParallel(nn.Linear(4, 1).to(device))  # hazard: PG1103*

    def step(x):
        model(x).square().mean().backward()  # hazard: PG1103*
        model.zero_grad(set_to_none=False)

    # hazard: PG1103*, PG701?, PG705?
    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)], "warmup": 11, "capture_warmup": 11}


def cleanup():
    dist.destroy_process_group()
    del os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"]
