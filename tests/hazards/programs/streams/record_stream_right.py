"""The tensor is held until the streams have met."""
import torch

CUDA_ONLY = True


def program(device):
    side = torch.cuda.Stream(device)
    total = torch.zeros(4, device=device)

    def step(x):
        y = x.square()
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            total.add_(y)
        torch.cuda.current_stream(device).wait_stream(side)
        del y

    return step, {"batches": [(torch.randn(4, device=device),) for _ in range(3)]}
