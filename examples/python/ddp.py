"""A character GPT learns the lines of a file on all GPUs of a machine, by DistributedDataParallel: eagerly, and with each step one
graph per rank. The weights are the same, bit for bit.

    torchrun --nproc-per-node 2 examples/python/ddp.py [FILE]
"""

import os
import sys
import time
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs to give the same bits twice

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import pianola

STEPS, BATCH, LENGTH, WIDTH = 60, 8, 48, 64


class CharGpt(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, activation="gelu", batch_first=True, norm_first=True)
        self.blocks, self.out = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(WIDTH, vocabulary)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, tokens):
        return self.out(self.blocks(self.tokens(tokens) + self.places.weight, mask=self.mask, is_causal=True))


def batches(text, device):
    """Other ones on each rank."""
    chooser = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        starts = torch.randint(len(text) - LENGTH - 1, (BATCH,), generator=chooser)
        chosen = torch.stack([text[start : start + LENGTH + 1] for start in starts])
        yield chosen[:, :-1].to(device), chosen[:, 1:].to(device)


def train(text, vocabulary, device, graphed):
    """The losses, the trained model and how long a step took in the end."""
    torch.manual_seed(0)
    model = DistributedDataParallel(CharGpt(vocabulary).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)

    def step(tokens, following):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens).flatten(0, 1), following.flatten())
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss.detach()

    run = pianola.graphed(step) if graphed else step
    losses, data = [], list(batches(text, device))
    for number, batch in enumerate(data):
        if number == STEPS - 20:
            start = _now(device)
        losses.append(run(*batch))
    taken = (_now(device) - start) / 20
    replays = sum(one.replays for one in run.info().signatures) if graphed else 0
    return torch.stack(losses), model, taken, replays


def _now(device):
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def main(file):
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    letters = Path(file).read_text(errors="replace")
    numbers = {letter: i for i, letter in enumerate(sorted(set(letters)))}
    text = torch.tensor([numbers[letter] for letter in letters])
    eager, twin, eagerly, _ = train(text, len(numbers), device, graphed=False)
    losses, model, taken, replays = train(text, len(numbers), device, graphed=True)
    same = torch.equal(losses, eager) and all(map(torch.equal, model.parameters(), twin.parameters()))
    rank = f"rank {dist.get_rank()} of {dist.get_world_size()} on {device.type}"
    print(f"{rank}: loss {losses[0]:.3f} to {losses[-1]:.3f}, {replays} of {STEPS} steps replayed", flush=True)
    print(f"{rank}: a step takes {1e3 * eagerly:.2f} ms eagerly, {1e3 * taken:.2f} ms by replay", flush=True)
    print(f"{rank}: losses and weights are {'' if same else 'NOT '}those of eager, bit for bit", flush=True)
    dist.destroy_process_group()  # drops the graphs, which NCCL would wait for


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else __file__)
