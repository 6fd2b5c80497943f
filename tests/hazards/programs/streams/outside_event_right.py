"""The loop waits for the loader's event, and then starts the step."""
import torch
from torch import nn

CUDA_ONLY = True


def program(device):
    model = nn.Linear(4, 2).to(device).requires_grad_(False)
    loader_stream = torch.cuda.Stream(device)
    batch = torch.randn(3, 4, device=device)

    def between():
        loader_stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(loader_stream):
            batch.copy_(torch.randn(3, 4, device=device))
        torch.cuda.current_stream(device).wait_stream(loader_stream)

    def step():
        return model(batch)

    return step, {"between": between}
