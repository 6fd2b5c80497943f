"""A gradient penalty needs the derivative of the backward of what is to be a graphed callable."""
import torch
from torch import nn


def program(device):
    critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)

    def step(x):
        critic.zero_grad()
        x = x.detach().requires_grad_()
        score = critic(x)
        (gradient,) = torch.autograd.grad(score.sum(), x, create_graph=True)  # hazard: PG1007*
        loss = score.mean() + (gradient.norm(dim=1) - 1).square().mean()
        loss.backward()  # hazard: PG1007*

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)], "callables": (critic,)}
