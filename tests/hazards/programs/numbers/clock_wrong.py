"""An animation takes its phase from the clock."""
import time

import torch


def program(device):
    grid = torch.linspace(0, 6.28, 16, device=device)
    start = time.perf_counter()

    def render():
        phase = time.perf_counter() - start  # hazard: PG305
        return torch.sin(grid + phase)  # hazard: PG301?

    return render
