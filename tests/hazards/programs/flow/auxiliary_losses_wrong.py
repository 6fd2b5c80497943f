"""The dictionary of losses has another key in some iterations."""
import torch
from torch import nn


class Losses:
    def __init__(self, device):
        self.model = nn.Linear(4, 4).to(device)
        self.iteration = 0

    @torch.no_grad()
    def __call__(self, x):
        y = self.model(x)
        loss = y.square().mean()
        losses = {"main": loss}
        if self.iteration % 2:
            losses["again"] = loss
        # hazard: PG505, PG304?
        return losses

    def advance(self):
        self.iteration += 1


def program(device):
    losses = Losses(device)
    return losses, {"batches": [(torch.randn(2, 4, device=device),) for _ in range(3)], "between": losses.advance}
