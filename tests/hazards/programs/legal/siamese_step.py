"""A module that runs twice before its backward, where the whole step is one graph."""
import torch
from torch import nn
from torch.nn import functional as F


def program(device):
    encoder = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).to(device)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)

    def step(one, other):
        optimizer.zero_grad()
        similarity = F.cosine_similarity(encoder(one), encoder(other))
        (1 - similarity).mean().backward()
        optimizer.step()

    batches = [(torch.randn(3, 4, device=device), torch.randn(3, 4, device=device)) for _ in range(3)]
    return step, {"batches": batches}
