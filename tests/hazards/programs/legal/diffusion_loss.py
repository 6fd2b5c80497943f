"""A diffusion loss with random timesteps that index a table on the device."""
import torch
from torch import nn


def program(device):
    model = nn.Sequential(nn.Linear(5, 8), nn.SiLU(), nn.Linear(8, 4)).to(device)
    keep = torch.linspace(0.99, 0.01, 20, device=device)

    def step(x):
        model.zero_grad()
        t = torch.randint(0, 20, (x.shape[0],), device=device)
        noise, alpha = torch.randn_like(x), keep[t][:, None]
        noisy = alpha.sqrt() * x + (1 - alpha).sqrt() * noise
        loss = (model(torch.cat([noisy, t[:, None] / 20], dim=1)) - noise).square().mean()
        loss.backward()
        return loss.detach()

    return step, {"batches": [(torch.randn(4, 4, device=device),) for _ in range(3)]}
