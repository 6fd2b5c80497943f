"""Class weights live in a tensor, which is written between the steps."""
import torch
from torch import nn
from torch.nn import functional as F


def program(device):
    model = nn.Linear(4, 3).to(device)
    counts = [1, 1, 1]
    weights = torch.ones(3, device=device)

    def step(x, y):
        model.zero_grad()
        F.cross_entropy(model(x), y, weight=weights).backward()

    def between():
        counts[:] = [count + n for n, count in enumerate(counts)]
        weights.copy_(torch.tensor([1.0 / count for count in counts]))

    batches = [(torch.randn(6, 4, device=device), torch.randint(0, 3, (6,), device=device)) for _ in range(3)]
    return step, {"batches": batches, "between": between}
