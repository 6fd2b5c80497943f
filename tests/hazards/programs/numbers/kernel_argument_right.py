"""The kernel reads the number from a tensor."""
import torch

CUDA_ONLY = True

SOURCE = """
extern "C" __global__ void scale(float* y, const float* x, const float* factor, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) y[i] = *factor * x[i];
}
"""


def program(device):
    kernel = torch.cuda._compile_kernel(SOURCE, "scale")
    factor = torch.ones((), device=device)
    x, y = torch.randn(64, device=device), torch.empty(64, device=device)

    def step():
        kernel((1, 1, 1), (64, 1, 1), (y, x, factor, 64))
        return y + 1

    def between():
        factor.add_(0.5)

    return step, {"between": between}
