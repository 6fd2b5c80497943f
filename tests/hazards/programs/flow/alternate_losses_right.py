"""One step trains the discriminator and then the generator."""
import torch
from torch import nn


def program(device):
    generator, discriminator = nn.Linear(2, 4).to(device), nn.Linear(4, 1).to(device)

    @torch.no_grad()
    def step(noise, real):
        fake = generator(noise)
        for_generator = discriminator(fake).sigmoid().log().mean()
        for_discriminator = discriminator(torch.cat([real, fake])).relu().mean()
        return for_generator, for_discriminator

    batches = [(torch.randn(3, 2, device=device), torch.randn(3, 4, device=device)) for _ in range(3)]
    return step, {"batches": batches}
