"""Class weights are computed on the host and made a tensor in every step."""
import torch
from torch import nn
from torch.nn import functional as F


def program(device):
    model = nn.Linear(4, 3).to(device)
    counts = [1, 1, 1]

    def step(x, y):
        model.zero_grad()
        weights = torch.tensor([1.0 / count for count in counts], device=device)  # hazard: PG303, PG202@cuda
        F.cross_entropy(model(x), y, weight=weights).backward()

    def between():
        counts[:] = [count + n for n, count in enumerate(counts)]

    batches = [(torch.randn(6, 4, device=device), torch.randint(0, 3, (6,), device=device)) for _ in range(3)]
    return step, {"batches": batches, "between": between}
