"""Trains a small network, eagerly or with its whole iteration in one graph: the program that docs/guide/profile.md profiles.

    python train_mlp.py [--graph] [--steps N]

Both print the same losses, bit for bit.
"""

import argparse
import time

import torch
from torch import nn

import pianola

LAYERS, WIDTH, BATCH = 16, 64, 32


def network():
    layers = []
    for _ in range(LAYERS):
        layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--graph", action="store_true", help="replay the whole iteration as one graph")
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    device = pianola.default_device()
    torch.manual_seed(0)
    model = network().to(device)
    optimizer = pianola.optim.AdamW(model.parameters(), lr=1e-3)
    batches = torch.randn(8, BATCH, WIDTH, device=device)
    targets = batches.sum(dim=2, keepdim=True).sin()

    def train_step(microbatches):
        optimizer.zero_grad()
        (x, y), = microbatches
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = pianola.FullIteration(train_step, outputs="clone") if options.graph else train_step
    losses = []
    start = time.perf_counter()
    for i in range(options.steps):
        if i == options.steps // 2:  # warm by now
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        losses.append(step([(batches[i % 8], targets[i % 8])]))
    first, last = losses[0].item(), losses[-1].item()
    time_per_step = (time.perf_counter() - start) / (options.steps - options.steps // 2)
    print(f"{device.type}: loss {first:.4f} -> {last:.4f}, {time_per_step * 1e6:.0f} us per step")


if __name__ == "__main__":
    main()
