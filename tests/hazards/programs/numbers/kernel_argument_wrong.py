"""A kernel of one's own is given a number that changes, which no operator shows."""
import torch

CUDA_ONLY = True

SOURCE = """
extern "C" __global__ void scale(float* y, const float* x, double factor, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) y[i] = static_cast<float>(factor) * x[i];
}
"""


def program(device):
    kernel = torch.cuda._compile_kernel(SOURCE, "scale")
    state = {"factor": 1.0}
    x, y = torch.randn(64, device=device), torch.empty(64, device=device)

    def step():
        kernel((1, 1, 1), (64, 1, 1), (y, x, state["factor"], 64))  # hazard: PG302*
        return y + 1  # hazard: PG302*

    def between():
        state["factor"] += 0.5

    # hazard: PG304?
    return step, {"between": between}
