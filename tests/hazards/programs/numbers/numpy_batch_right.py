"""What the loader made is copied into a static tensor between the steps."""
import numpy as np
import torch
from torch import nn


class Loader:
    def __init__(self, device):
        self.rng = np.random.default_rng(0)
        self.batch = torch.empty(3, 4, device=device)
        self.advance()

    def advance(self):
        self.batch.copy_(torch.from_numpy(self.rng.standard_normal((3, 4), dtype=np.float32)))


def program(device):
    model, loader = nn.Linear(4, 2).to(device), Loader(device)

    @torch.no_grad()
    def step():
        return model(loader.batch)

    return step, {"between": loader.advance}
