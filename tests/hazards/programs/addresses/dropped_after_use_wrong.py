"""A tensor that the step reads through a weak reference is freed after the last iteration that needs it."""
import weakref

import torch


class Prompt:
    def __init__(self, device):
        self.embedding = torch.randn(3, device=device)


def program(device):
    holder = [Prompt(device)]
    current = weakref.ref(holder[0])
    prompt = {"ref": current}

    def step(x):
        return x + prompt["ref"]().embedding  # hazard: PG401|PG404

    def between():
        holder[0] = Prompt(device)
        prompt["ref"] = weakref.ref(holder[0])

    return step, {"batches": [(torch.randn(3, device=device),) for _ in range(3)], "between": between}
