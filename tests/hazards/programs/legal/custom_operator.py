"""A custom operator with a derivative, registered through torch.library."""
import torch
from torch import Tensor, nn


@torch.library.custom_op("hazards_legal::cube", mutates_args=())
def cube(x: Tensor) -> Tensor:
    return x * x * x


def save(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])


def derivative(ctx, gradient):
    (x,) = ctx.saved_tensors
    return 3 * x * x * gradient


cube.register_autograd(derivative, setup_context=save)


def program(device):
    model = nn.Linear(4, 1).to(device)

    def step(x):
        model.zero_grad()
        cube(model(x)).mean().backward()

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}
