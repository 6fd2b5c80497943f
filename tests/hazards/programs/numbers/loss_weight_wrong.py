"""The weight of the KL term rises from zero, held in a dictionary."""
import torch
from torch import nn


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(6, 4)
        self.decode = nn.Linear(2, 6)

    def forward(self, x):
        mean, log_var = self.encode(x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (log_var / 2).exp()
        divergence = 0.5 * (mean.square() + log_var.exp() - 1 - log_var).sum(-1).mean()
        return self.decode(z), divergence


def program(device):
    model = Autoencoder().to(device)
    config = {"beta": 0.1}

    def step(x):
        model.zero_grad()
        reconstructed, divergence = model(x)
        loss = (reconstructed - x).square().mean() + config["beta"] * divergence  # hazard: PG301
        loss.backward()  # hazard: PG301?

    def between():
        config["beta"] += 0.1

    return step, {"batches": [(torch.randn(3, 6, device=device),) for _ in range(3)], "between": between}
