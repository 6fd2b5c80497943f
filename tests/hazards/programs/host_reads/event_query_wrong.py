"""An event is asked whether the work before it is over."""
import torch

CUDA_ONLY = True


def program(device):
    done = torch.cuda.Event()

    def step(x):
        y = x.square()
        done.record()
        ready = done.query()  # hazard: PG109
        return y, ready

    return step, {"batches": [(torch.randn(8, device=device),) for _ in range(3)]}
