"""The training loop puts each new batch under a global name that the step reads."""
import torch
from torch import nn

batch = None


def program(device):
    global batch
    model = nn.Linear(4, 2).to(device)
    batch = torch.randn(3, 4, device=device)

    @torch.no_grad()
    def step():
        return model(batch)  # hazard: PG401

    def between():
        global batch
        batch = torch.randn(3, 4, device=device)

    return step, {"between": between}
