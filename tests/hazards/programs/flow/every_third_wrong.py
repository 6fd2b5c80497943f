"""Every third call also updates the target network, by a counter of the loop."""
import torch
from torch import nn


class Agent:
    def __init__(self, device):
        self.online, self.target = nn.Linear(4, 2).to(device), nn.Linear(4, 2).to(device)
        self.updates = 0

    @torch.no_grad()
    def step(self, x):
        value = self.target(x).amax(-1)
        if self.updates % 3 == 2:
            for mine, other in zip(self.target.parameters(), self.online.parameters()):
                mine.lerp_(other, 0.01)  # hazard: PG501*
        return value * 0.99  # hazard: PG501*

    def count(self):
        self.updates += 1


def program(device):
    agent = Agent(device)
    # hazard: PG304?
    batches = [(torch.randn(3, 4, device=device),) for _ in range(3)]
    return agent.step, {"batches": batches, "between": agent.count, "iterations": 4}
