"""The phase is a tensor, set by the loop that shows the frames."""
import time

import torch


def program(device):
    grid = torch.linspace(0, 6.28, 16, device=device)
    phase = torch.zeros((), device=device)
    start = time.perf_counter()

    def render():
        return torch.sin(grid + phase)

    def between():
        phase.fill_(time.perf_counter() - start)

    return render, {"between": between}
