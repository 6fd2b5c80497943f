"""Gradients are summed by a functional collective, whose wait belongs to a tensor of Python."""
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn


def program(device):
    kind = torch.device(device).type
    dist.init_process_group("nccl" if kind == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = nn.Linear(4, 1).to(device)

    def step(x):
        model.zero_grad(set_to_none=False)
        model(x).square().mean().backward()
        for parameter in model.parameters():
            total = functional.all_reduce(parameter.grad, "sum", dist.group.WORLD)  # hazard: PG1106
            parameter.grad.copy_(functional.wait_tensor(total))

    # hazard: PG1101*@cuda?, PG403?, PG1203?
    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}


def cleanup():
    dist.destroy_process_group()
