"""Many small operations: what a graph is for."""
import torch

CUDA_ONLY = True


def program(device):
    a = torch.randn(8, 8, device=device)

    def step():
        x = a
        for _ in range(100):
            x = torch.tanh(x @ a)
        return x

    return step
