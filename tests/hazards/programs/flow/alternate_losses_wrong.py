"""Odd iterations train the discriminator, even ones the generator, in one step."""
import itertools

import torch
from torch import nn


def program(device):
    generator, discriminator = nn.Linear(2, 4).to(device), nn.Linear(4, 1).to(device)
    turn = itertools.cycle(["generator", "discriminator"])
    state = {"turn": "generator"}

    @torch.no_grad()
    def step(noise, real):
        fake = generator(noise)
        if state["turn"] == "generator":
            return discriminator(fake).sigmoid().log().mean()  # hazard: PG501*
        return discriminator(torch.cat([real, fake])).relu().mean()  # hazard: PG501*

    def between():
        state["turn"] = next(turn)

    # hazard: PG304?
    batches = [(torch.randn(3, 2, device=device), torch.randn(3, 4, device=device)) for _ in range(3)]
    return step, {"batches": batches, "between": between}
