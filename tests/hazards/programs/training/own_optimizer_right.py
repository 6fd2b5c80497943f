"""The step count of the optimizer is a tensor of its state."""
import torch
from torch import nn


class DecayedSGD(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["step"] = torch.zeros((), device=p.device)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                step = self.state[p]["step"].add_(1)
                p.sub_(p.grad * (group["lr"] / step))


def program(device):
    model = nn.Linear(4, 1, bias=False).to(device)
    optimizer = DecayedSGD(model.parameters(), lr=0.1)

    def train_step(x):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return train_step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}
