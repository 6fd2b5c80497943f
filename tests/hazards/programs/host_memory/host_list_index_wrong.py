"""A Python list as an index is copied to the device in every step."""
import torch

CUDA_ONLY = True


def program(device):
    def reorder(channels):
        return channels[:, [2, 1, 0]]  # hazard: PG202

    return reorder, {"batches": [(torch.rand(2, 3, 4, device=device),) for _ in range(3)]}
