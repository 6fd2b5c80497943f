"""A text for the progress bar formats the loss, which reads it."""
import logging

import torch
from torch import nn

log = logging.getLogger("training")


def program(device):
    model = nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        log.debug(f"loss {loss:.4f}")  # hazard: PG101|PG104, PG804?

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}
