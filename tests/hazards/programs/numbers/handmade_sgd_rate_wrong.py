"""A warm-up of the learning rate by hand: a number of the host goes into add_()."""
import torch
from torch import nn


class Trainer:
    def __init__(self, device):
        self.model = nn.Linear(4, 1).to(device)
        self.rate = 0.001

    def warm_up(self):
        self.rate += 0.001

    def step(self, x):
        loss = self.model(x).square().mean()
        gradients = torch.autograd.grad(loss, list(self.model.parameters()))
        with torch.no_grad():
            for p, g in zip(self.model.parameters(), gradients):
                p.add_(g, alpha=-self.rate)  # hazard: PG301


def program(device):
    trainer = Trainer(device)
    batches = [(torch.randn(5, 4, device=device),) for _ in range(3)]
    return trainer.step, {"batches": batches, "between": trainer.warm_up}
