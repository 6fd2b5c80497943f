"""The training loop copies each new batch into the one tensor that the step reads."""
import torch
from torch import nn

batch = None


def program(device):
    global batch
    model = nn.Linear(4, 2).to(device)
    batch = torch.randn(3, 4, device=device)

    @torch.no_grad()
    def step():
        return model(batch)

    def between():
        batch.copy_(torch.randn(3, 4, device=device))

    return step, {"between": between}
