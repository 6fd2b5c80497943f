"""DistributedDataParallel is captured after three warm-up runs: it rebuilds its buckets in the first ten."""
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def program(device):
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    kind = torch.device(device).type
    dist.init_process_group("nccl" if kind == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    side = torch.cuda.stream(torch.cuda.Stream(device)) if kind == "cuda" else torch.no_grad()
    with side:
        model = DistributedDataParallel(nn.Linear(4, 1).to(device))

    def step(x):
        model(x).square().mean().backward()  # hazard: PG501?, PG103?, PG202?
        model.zero_grad(set_to_none=False)

    # hazard: PG1104
    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)], "capture_warmup": 3}


def cleanup():
    dist.destroy_process_group()
    del os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"]
