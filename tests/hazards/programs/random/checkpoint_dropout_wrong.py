"""Checkpointing stashes generators in forward and sets them in backward."""
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 4))

    def forward(self, x):
        return x + checkpoint(self.layers, x, use_reentrant=False)  # hazard: PG605


def program(device):
    model = nn.Sequential(Block(), Block()).to(device)

    def step(x):
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()  # hazard: PG605?
        return loss.detach()

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}
