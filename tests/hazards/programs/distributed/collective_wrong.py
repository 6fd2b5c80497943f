"""The step waits at a barrier, which a replay would not do."""
import torch
import torch.distributed as dist
from torch import nn


def program(device):
    kind = torch.device(device).type
    dist.init_process_group("nccl" if kind == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = nn.Linear(4, 1).to(device)

    def step(x):
        model.zero_grad(set_to_none=False)
        model(x).square().mean().backward()
        dist.barrier()  # hazard: PG1106, PG108?

    # hazard: PG1101*@cuda?, PG403?, PG501?
    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}


def cleanup():
    dist.destroy_process_group()
