"""The mask is made once, on first use, and kept."""
import torch


class Masks:
    def __init__(self, device):
        self.device = device
        self.kept = {}

    def causal(self):
        if "causal" not in self.kept:
            self.kept["causal"] = torch.ones(4, 4, device=self.device).tril()
        return self.kept["causal"]


def program(device):
    masks = Masks(device)
    masks.causal()

    def step(scores):
        return scores + masks.causal()

    return step, {"batches": [(torch.randn(4, 4, device=device),) for _ in range(3)]}
