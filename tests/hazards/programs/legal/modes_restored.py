"""The step switches the module to evaluation and back, and freezes and thaws the critic: at its end all is as before."""
import torch
from torch import nn


def program(device):
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).to(device)
    critic = nn.Linear(4, 1).to(device)

    def step(x):
        model.eval()
        with torch.no_grad():
            target = model(x)
        model.train()
        for p in critic.parameters():
            p.requires_grad_(False)
        model.zero_grad()
        (critic(model(x)).mean() + (model(x) - target).square().mean()).backward()
        for p in critic.parameters():
            p.requires_grad_(True)

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}
