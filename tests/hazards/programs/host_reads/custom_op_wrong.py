"""A custom operator reads its scale on the host."""
import torch
from torch import Tensor


@torch.library.custom_op("hazards_wrong::quantize", mutates_args=())
def quantize(x: Tensor, scale: Tensor) -> Tensor:
    return torch.round(x / float(scale)) * 2.0  # hazard: PG101*@cuda, PG101?


def program(device):
    scale = torch.full((), 0.5, device=device)

    def step(x):
        return quantize(x, scale)  # hazard: PG101*@cuda

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}
