"""Few large operations: the device is busy all the time, and a graph gains nothing."""
import torch

CUDA_ONLY = True


def program(device):
    a, b = torch.randn(8192, 8192, device=device), torch.randn(8192, 8192, device=device)

    def step():
        return a @ b @ a

    # hazard: PG1204
    return step
