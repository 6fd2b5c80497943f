"""Two networks, two optimizers, one of them frozen while the other learns: the same in every step."""
import torch
from torch import nn
from torch.nn import functional as F


def program(device):
    generator = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3)).to(device)
    critic = nn.Sequential(nn.Linear(3, 4), nn.LeakyReLU(0.2), nn.Linear(4, 1)).to(device)
    for_generator = torch.optim.Adam(generator.parameters(), lr=1e-3, fused=True, capturable=True)
    for_critic = torch.optim.Adam(critic.parameters(), lr=1e-3, fused=True, capturable=True)

    def step(real):
        noise = torch.randn(real.shape[0], 2, device=device)
        for_critic.zero_grad()
        (F.softplus(critic(generator(noise).detach())) + F.softplus(-critic(real))).mean().backward()
        for_critic.step()
        for_generator.zero_grad()
        F.softplus(-critic(generator(noise))).mean().backward()
        for_generator.step()

    return step, {"batches": [(torch.randn(4, 3, device=device),) for _ in range(3)]}
