"""A compiled function is called for the first time in the step that is captured."""
import torch
from torch import nn


def program(device):
    torch.compiler.reset()
    model = nn.Linear(4, 4).to(device).requires_grad_(False)

    @torch.compile(backend="eager")
    def swish(x):
        return x * torch.sigmoid(x)

    def step(x):
        return swish(model(x))  # hazard: PG1005

    batches = [(torch.randn(3, 4, device=device),) for _ in range(3)]
    return step, {"batches": batches, "warmup": 0, "capture_warmup": 0}
