"""The range of a clamp narrows from iteration to iteration: numbers in keyword arguments."""
import torch


class Clipper:
    def __init__(self):
        self.limit = 3.0

    def __call__(self, x):
        return x.clamp(min=-self.limit, max=self.limit)  # hazard: PG301


def program(device):
    clipper = Clipper()

    def between():
        clipper.limit -= 0.5

    return clipper, {"batches": [(torch.randn(6, device=device),) for _ in range(3)], "between": between}
