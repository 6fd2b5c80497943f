"""The host waits for the stream on which a copy was made."""
import torch

CUDA_ONLY = True


def program(device):
    host = torch.empty(8, pin_memory=True)

    def step(x):
        y = x.square()
        host.copy_(y, non_blocking=True)
        torch.cuda.current_stream().synchronize()  # hazard: PG108
        return y + 1

    return step, {"batches": [(torch.randn(8, device=device),) for _ in range(3)]}
