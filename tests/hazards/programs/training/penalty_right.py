"""The whole step, its inner gradients included, becomes one graph."""
import torch
from torch import nn


def program(device):
    critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)

    def step(x):
        critic.zero_grad()
        x = x.detach().requires_grad_()
        score = critic(x)
        (gradient,) = torch.autograd.grad(score.sum(), x, create_graph=True)
        loss = score.mean() + (gradient.norm(dim=1) - 1).square().mean()
        loss.backward()

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}
