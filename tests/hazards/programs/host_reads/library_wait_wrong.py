"""A library that is called through ctypes waits for the device."""
import ctypes

import torch

CUDA_ONLY = True


def program(device):
    runtime = ctypes.CDLL("libcudart.so." + torch.version.cuda.split(".")[0])

    def step(x):
        y = x.square()
        runtime.cudaDeviceSynchronize()  # hazard: PG108|PG110
        return y + 1

    return step, {"batches": [(torch.randn(8, device=device),) for _ in range(3)]}
