"""A diffusion model: the training step is one graph, and so is each step of the sampler, whose time is a tensor. The U-Net is as
people write it. Losses, weights and images are those of eager, bit for bit.

    python examples/python/diffusion.py
"""

import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs to give the same bits twice

import torch
import torch.nn.functional as F
from torch import nn

import pianola

STEPS, TIMES, SIZE = 40, 50, 16


class ResBlock(nn.Module):
    def __init__(self, channels, out):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, channels), nn.GroupNorm(4, out)
        self.conv1, self.conv2 = nn.Conv2d(channels, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
        self.time, self.skip = nn.Linear(32, out), nn.Conv2d(channels, out, 1)

    def forward(self, x, time):
        y = self.conv1(F.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(y)))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32))
        self.stem, self.head = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 1, 3, padding=1)
        self.down, self.middle = nn.ModuleList([ResBlock(16, 16), ResBlock(16, 32)]), ResBlock(32, 32)
        self.up = nn.ModuleList([ResBlock(64, 16), ResBlock(32, 16)])

    def forward(self, x, time):
        angles = time[:, None] * torch.exp(-torch.arange(8, device=x.device) / 2.0)
        time = self.embed(torch.cat([angles.sin(), angles.cos()], 1))
        x, across = self.stem(x), []
        for block in self.down:
            x = block(x, time)
            across.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.middle(x, time)
        for block in self.up:
            x = block(torch.cat([x.repeat_interleave(2, 2).repeat_interleave(2, 3), across.pop()], 1), time)
        return self.head(x)


class Diffusion:
    def __init__(self, device):
        torch.manual_seed(0)
        self.model = UNet().to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3)
        self.kept = torch.cumprod(1 - torch.linspace(1e-3, 0.2, TIMES), 0).to(device)  # of the image, after each time

    def train_step(self, images):
        time = torch.randint(TIMES, (images.shape[0],), device=images.device)
        kept, noise = self.kept[time][:, None, None, None], torch.randn_like(images)
        self.optimizer.zero_grad()
        guess = self.model(kept.sqrt() * images + (1 - kept).sqrt() * noise, time)
        loss = F.mse_loss(guess, noise)
        loss.backward()
        self.optimizer.step()
        return loss

    @torch.no_grad()
    def sample_step(self, x, time):
        """From a time to the one before; time is a tensor of one number."""
        now, before = self.kept[time], torch.where(time > 0, self.kept[(time - 1).clamp(min=0)], torch.ones_like(self.kept[time]))
        share = now / before
        mean = (x - (1 - share) / (1 - now).sqrt() * self.model(x, time.expand(x.shape[0]))) / share.sqrt()
        return mean + ((1 - share) * (1 - before) / (1 - now)).sqrt() * torch.randn_like(x)


def run(device, graphed):
    """The losses, the weights, images, and how many calls were replayed."""
    diffusion = Diffusion(device)
    train, sample = diffusion.train_step, diffusion.sample_step
    if graphed:
        train, sample = pianola.graphed(train), pianola.graphed(sample)
    chooser = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(STEPS):
        corner = torch.randint(2, SIZE - 7, (16, 2), generator=chooser)
        images = torch.full((16, 1, SIZE, SIZE), -1.0)
        for image, (top, left) in zip(images, corner.tolist()):
            image[:, top : top + 5, left : left + 5] = 1.0  # a square somewhere
        losses.append(train(images.to(device)))
    x = torch.randn(4, 1, SIZE, SIZE, device=device)
    for time in reversed(range(TIMES)):
        x = sample(x, torch.tensor([time], device=device))
    replays = sum(one.replays for function in (train, sample) for one in function.info().signatures) if graphed else 0
    return torch.stack(losses).detach().cpu(), list(diffusion.model.parameters()), x, replays


def main():
    device = pianola.default_device()
    torch.use_deterministic_algorithms(True)
    expected, weights, wanted, _ = run(device, graphed=False)
    losses, found, images, replays = run(device, graphed=True)
    print(f"{device.type}: loss {losses[0]:.3f} to {losses[-1]:.3f}, {replays} of {STEPS + TIMES} steps replayed")
    same = torch.equal(losses, expected) and all(map(torch.equal, found, weights)) and torch.equal(images, wanted)
    print(f"losses, weights and images are {'' if same else 'NOT '}those of eager, bit for bit")


if __name__ == "__main__":
    main()
