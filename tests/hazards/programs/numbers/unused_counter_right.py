"""Whether the loss is halved is a tensor, decided outside."""
import torch
from torch import nn


class Trainer:
    def __init__(self, device):
        self.model = nn.Linear(4, 2).to(device)
        self.factor = torch.ones((), device=device)

    def step(self, x):
        loss = self.model(x).square().mean() * self.factor
        loss.backward()
        self.model.zero_grad()


def program(device):
    trainer = Trainer(device)
    global_step = 0

    def advance():
        nonlocal global_step
        global_step += 1
        trainer.factor.fill_(0.5 if global_step >= 1000 else 1.0)

    return trainer.step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)], "between": advance}
