"""record_stream() in the step keeps memory from being used again while it is captured."""
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
            y.record_stream(side)  # hazard: PG706
        torch.cuda.current_stream(device).wait_stream(side)

    return step, {"batches": [(torch.randn(4, device=device),) for _ in range(3)]}
