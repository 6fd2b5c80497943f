"""A mask that is built on first use and kept."""
import functools

import torch


@functools.lru_cache(maxsize=4)
def causal_mask(length, device):
    return torch.full((length, length), float("-inf"), device=device).triu(1)


def program(device):
    causal_mask.cache_clear()

    def step(scores):
        return (scores + causal_mask(scores.shape[-1], scores.device)).softmax(-1)

    return step, {"batches": [(torch.randn(2, 4, 4, device=device),) for _ in range(3)]}
