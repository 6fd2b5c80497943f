"""A part that is to be a graphed callable has a backward hook that clips its gradient."""
import torch
from torch import nn


def clip(module, grad_input, grad_output):
    return tuple(None if g is None else g.clamp(-1, 1) for g in grad_input)


def program(device):
    block = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).to(device)
    head = nn.Linear(4, 1).to(device)
    block.register_full_backward_hook(clip)

    def step(x):
        block.zero_grad()
        head.zero_grad()
        head(block(x)).square().mean().backward()

    x = [(torch.randn(3, 4, device=device),) for _ in range(3)]
    # hazard: PG1004
    return step, {"batches": x, "callables": (block,)}
