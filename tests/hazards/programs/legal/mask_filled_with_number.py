"""One number written through a mask is a masked_fill_: nobody counts the mask."""
import torch


def program(device):
    def step(scores):
        causal = torch.ones(4, 4, dtype=torch.bool, device=device).triu(1)
        scores = scores.clone()
        scores[causal] = float("-inf")
        return scores.softmax(-1)

    return step, {"batches": [(torch.randn(4, 4, device=device),) for _ in range(3)]}
