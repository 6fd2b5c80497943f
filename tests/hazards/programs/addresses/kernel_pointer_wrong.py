"""A kernel of one's own is given the address of a tensor that the loop replaces."""
import torch

CUDA_ONLY = True

SOURCE = """
extern "C" __global__ void add(float* y, const float* x, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) y[i] += x[i];
}
"""


def program(device):
    kernel = torch.cuda._compile_kernel(SOURCE, "add")
    state = {"x": torch.randn(64, device=device)}
    keep, y = [], torch.zeros(64, device=device)

    def step():
        kernel((1, 1, 1), (64, 1, 1), (y, state["x"], 64))  # hazard: PG401|PG405*
        return y + 1  # hazard: PG401|PG405*

    def between():
        keep.append(state["x"])
        state["x"] = torch.randn(64, device=device)

    return step, {"between": between}
