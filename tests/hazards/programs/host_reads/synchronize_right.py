"""Nothing waits in the step; what is to be timed is timed around the replay."""
import torch
from torch import nn

CUDA_ONLY = True


def program(device):
    model = nn.Linear(64, 64).to(device).requires_grad_(False)

    def step(x):
        return model(x).relu()

    return step, {"batches": [(torch.randn(8, 64, device=device),) for _ in range(3)], "between": torch.cuda.synchronize}
