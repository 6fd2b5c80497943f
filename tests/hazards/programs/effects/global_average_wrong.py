"""A global average is computed out of place and rebound."""
import torch

average = None


def program(device):
    global average
    average = torch.zeros(4, device=device)

    def update(x):
        global average
        average = 0.9 * average + 0.1 * x.mean(0)  # hazard: PG401|PG802

    return update, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}
