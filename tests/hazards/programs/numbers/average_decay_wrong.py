"""The decay of a moving average follows a schedule of the host."""
import torch
from torch import nn


class MovingAverage:
    def __init__(self, model):
        self.pairs = [(p.detach().clone(), p) for p in model.parameters()]
        self.updates = 0

    @property
    def decay(self):
        return min(0.999, (1 + self.updates) / (10 + self.updates))

    @torch.no_grad()
    def update(self):
        for average, p in self.pairs:
            average.lerp_(p, 1 - self.decay)  # hazard: PG301


def program(device):
    average = MovingAverage(nn.Linear(4, 4).to(device))

    def between():
        average.updates += 1

    return average.update, {"between": between}
