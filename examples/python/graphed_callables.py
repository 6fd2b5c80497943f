"""A transformer layer by layer of graphs: one line more than the eager training, and the same numbers, bit for bit.

What reads values, such as the clipping of gradients and the learning rate's schedule, stays ordinary code.
"""

import copy
import os
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs to give the same bits twice

import torch
from torch import nn

import pianola

device = pianola.default_device()
BATCH, LENGTH, WIDTH = 8, 16, 32


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix = nn.Linear(LENGTH, LENGTH)
        self.think = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x):
        x = x + self.mix(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.think(self.norm2(x))


def batch(generator):
    x = torch.randn(BATCH, LENGTH, WIDTH, generator=generator).to(device)
    return x, x.flip(1).cumsum(1) / 4


def train(model):
    """Knows nothing of graphs."""
    torch.manual_seed(1)
    generator = torch.Generator().manual_seed(2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=60)
    for step in range(60):
        optimizer.zero_grad()
        for _ in range(2):  # microbatches
            x, y = batch(generator)
            loss = nn.functional.mse_loss(model(x), y) / 2
            loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % 20 == 0:
            print(f"  step {step + 1}  loss {loss.item():.4f}  gradient {norm.item():.4f}")
    model.eval()
    with torch.no_grad():
        return model(batch(generator)[0])


def main():
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    eager = nn.Sequential(*(Block() for _ in range(3))).to(device)
    model = copy.deepcopy(eager)

    print(f"eager on {device}")
    expected = train(eager)

    sample = torch.randn(BATCH, LENGTH, WIDTH, device=device)
    model = pianola.make_graphed_callables(model, (sample,))  # the one line
    print("graphed")
    result = train(model)
    print(f"\n{model.forward.info()}\n")

    same = torch.equal(result, expected) and all(
        torch.equal(one, other) and torch.equal(one.grad, other.grad)
        for one, other in zip(model.parameters(), eager.parameters())
    )
    print("weights, gradients and evaluation are", "those of eager, bit for bit" if same else "NOT those of eager")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
