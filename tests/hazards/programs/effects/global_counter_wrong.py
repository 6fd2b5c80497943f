"""A global counter is raised by the step."""
import torch
from torch import nn

global_step = 0


def program(device):
    model = nn.Linear(4, 4).to(device).requires_grad_(False)

    def step(x):
        global global_step
        global_step += 1  # hazard: PG803
        return model(x)

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}
