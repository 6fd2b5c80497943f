"""Gradients of microbatches accumulate; every second one the loop drops them."""
import torch
from torch import nn


class Accumulation:
    def __init__(self, device):
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.microbatches = 0

    def microbatch(self, x):
        loss = self.model(x).square().mean() / 2  # hazard: PG403*
        loss.backward()  # hazard: PG403*, PG501?
        # hazard: PG501?

    def after(self):
        self.microbatches += 1
        if self.microbatches % 2 == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()


def program(device):
    training = Accumulation(device)
    batches = [(torch.randn(3, 4, device=device),) for _ in range(4)]
    return training.microbatch, {"batches": batches, "between": training.after, "iterations": 4}
