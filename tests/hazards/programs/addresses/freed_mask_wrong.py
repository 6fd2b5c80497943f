"""The loop deletes the mask that the step has read, and makes another when it is asked for."""
import torch


class Masks:
    def __init__(self, device):
        self.device = device
        self.kept = {}

    def causal(self):
        if "causal" not in self.kept:
            self.kept["causal"] = torch.ones(4, 4, device=self.device).tril() * len(self.kept)  # hazard: PG801|PG802|PG401*
        return self.kept["causal"]


def program(device):
    masks = Masks(device)

    def step(scores):
        return scores + masks.causal()  # hazard: PG801|PG802|PG401*

    return step, {"batches": [(torch.randn(4, 4, device=device),) for _ in range(3)], "between": masks.kept.clear}
