"""A custom operator takes a number that changes."""
import torch
from torch import Tensor


@torch.library.custom_op("hazards_wrong::blend", mutates_args=())
def blend(x: Tensor, y: Tensor, amount: float) -> Tensor:
    return x * amount + y * (1.0 - amount)  # hazard: PG301?, PG302?


def program(device):
    state = {"amount": 0.1}
    target = torch.randn(3, device=device)

    def step(x):
        return blend(x, target, state["amount"])  # hazard: PG301, PG302?

    def between():
        state["amount"] += 0.1

    return step, {"batches": [(torch.randn(3, device=device),) for _ in range(3)], "between": between}
