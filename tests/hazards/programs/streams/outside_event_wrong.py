"""The step waits for the event that the loader recorded after its copy."""
import torch
from torch import nn

CUDA_ONLY = True


def program(device):
    model = nn.Linear(4, 2).to(device).requires_grad_(False)
    loader_stream, copied = torch.cuda.Stream(device), torch.cuda.Event()
    batch = torch.randn(3, 4, device=device)

    def between():
        with torch.cuda.stream(loader_stream):
            batch.copy_(torch.randn(3, 4, device=device))
            copied.record()

    def step():
        torch.cuda.current_stream(device).wait_event(copied)  # hazard: PG704*
        return model(batch)  # hazard: PG704*

    between()
    return step, {"between": between}
