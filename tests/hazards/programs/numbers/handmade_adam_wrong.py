"""Adam by hand counts its steps in Python, for the correction of its bias."""
import torch
from torch import nn


class Adam:
    def __init__(self, params):
        self.params = list(params)
        self.mean = [torch.zeros_like(p) for p in self.params]
        self.square = [torch.zeros_like(p) for p in self.params]
        self.steps = 0

    @torch.no_grad()
    def update(self, gradients):
        self.steps += 1  # hazard: PG803
        for p, g, m, v in zip(self.params, gradients, self.mean, self.square):
            m.lerp_(g, 0.1)
            v.lerp_(g * g, 0.001)
            corrected = m / (1 - 0.9**self.steps)  # hazard: PG301
            p.sub_(0.01 * corrected / (v.sqrt() + 1e-8))


def program(device):
    model = nn.Linear(4, 1).to(device)
    adam = Adam(model.parameters())

    def step(x):
        adam.update(torch.autograd.grad(model(x).square().mean(), adam.params))

    return step, {"batches": [(torch.randn(5, 4, device=device),) for _ in range(3)]}
