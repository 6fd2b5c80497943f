"""Streams meet by waiting for each other; nobody asks."""
import torch

CUDA_ONLY = True


def program(device):
    side = torch.cuda.Stream()

    def step(x):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x.square()
        torch.cuda.current_stream().wait_stream(side)
        return y + 1

    return step, {"batches": [(torch.randn(8, device=device),) for _ in range(3)]}
