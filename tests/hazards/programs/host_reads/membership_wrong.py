"""The operator `in` compares with every element and reads the answer."""
import torch


def program(device):
    stop_words = torch.tensor([3, 7, 11], device=device)

    def step(token):
        stopped = token in stop_words  # hazard: PG101|PG102
        return token + 1, stopped

    return step, {"batches": [(torch.full((), n, device=device),) for n in range(3)]}
