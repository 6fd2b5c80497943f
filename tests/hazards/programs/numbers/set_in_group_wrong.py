"""The training loop writes the learning rate into the optimizer's group."""
import math

import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 2).to(device)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01)

    def train_step(x, y):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()  # hazard: PG301|PG1001

    def cosine(runs):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * (1 + math.cos(runs / 10)) / 2

    batches = [(torch.randn(3, 4, device=device), torch.randn(3, 2, device=device)) for _ in range(3)]
    return train_step, {"batches": batches, "between": cosine}
