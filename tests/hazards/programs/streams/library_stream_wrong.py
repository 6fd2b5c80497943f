"""A library is given the null stream instead of the current one."""
import ctypes

import torch

CUDA_ONLY = True


def program(device):
    runtime = ctypes.CDLL("libcudart.so." + torch.version.cuda.split(".")[0])
    scratch = torch.empty(8, device=device)

    def step(x):
        scratch.copy_(x)
        runtime.cudaMemsetAsync(ctypes.c_void_p(scratch.data_ptr()), 0, ctypes.c_size_t(16), None)  # hazard: PG701*
        return scratch + 1  # hazard: PG701*

    return step, {"batches": [(torch.randn(8, device=device),) for _ in range(3)]}
