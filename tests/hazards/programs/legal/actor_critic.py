"""A policy gradient step with two optimizers and one backward each."""
import torch
from torch import nn


def program(device):
    actor, critic = nn.Linear(4, 2).to(device), nn.Linear(4, 1).to(device)
    actor_optimizer = torch.optim.SGD(actor.parameters(), lr=0.01)
    critic_optimizer = torch.optim.SGD(critic.parameters(), lr=0.02)

    def step(state, action, reward):
        value = critic(state).squeeze(-1)
        advantage = (reward - value).detach()
        log_probability = actor(state).log_softmax(-1).gather(1, action[:, None]).squeeze(1)
        actor_optimizer.zero_grad()
        (-log_probability * advantage).mean().backward()
        actor_optimizer.step()
        critic_optimizer.zero_grad()
        (reward - value).square().mean().backward()
        critic_optimizer.step()

    def batch():
        return torch.randn(5, 4, device=device), torch.randint(0, 2, (5,), device=device), torch.randn(5, device=device)

    return step, {"batches": [batch() for _ in range(3)]}
