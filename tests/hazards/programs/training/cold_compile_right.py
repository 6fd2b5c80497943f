"""The compiled function is called outside of the step."""
import torch
from torch import nn


def program(device):
    torch.compiler.reset()
    model = nn.Linear(4, 4).to(device).requires_grad_(False)

    @torch.compile(backend="eager")
    def swish(x):
        return x * torch.sigmoid(x)

    def step(x):
        return model(x)

    batches = [(swish(torch.randn(3, 4, device=device)),) for _ in range(3)]
    return step, {"batches": batches, "warmup": 0, "capture_warmup": 0}
