"""The custom operator takes the amount as a tensor."""
import torch
from torch import Tensor


@torch.library.custom_op("hazards_right::blend", mutates_args=())
def blend(x: Tensor, y: Tensor, amount: Tensor) -> Tensor:
    return x * amount + y * (1.0 - amount)


def program(device):
    state = {"amount": torch.full((), 0.1, device=device)}
    target = torch.randn(3, device=device)

    def step(x):
        return blend(x, target, state["amount"])

    def between():
        state["amount"] += 0.1

    return step, {"batches": [(torch.randn(3, device=device),) for _ in range(3)], "between": between}
