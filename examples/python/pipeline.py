"""Two ranks train the two halves of a network as a pipeline: microbatches go forward by messages, and gradients back. The whole schedule
of a rank, with its messages, is one graph. The weights are those of eager, bit for bit.

    torchrun --nproc-per-node 2 examples/python/pipeline.py
"""

import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs to give the same bits twice

import torch
import torch.distributed as dist
from torch import nn

import pianola

STEPS, MICROBATCHES, BATCH, WIDTH = 40, 4, 16, 32


def make_stage(first, device):
    torch.manual_seed(int(first))
    layers = [nn.Linear(8, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh()] if first else [nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)]
    return nn.Sequential(*layers).to(device)


def first_stage(model, optimizer):
    def step(points):
        optimizer.zero_grad()
        sent = [model(one) for one in points]
        for one in sent:
            dist.send(one.detach(), 1)
        for one in reversed(sent):
            gradient = torch.empty_like(one)
            dist.recv(gradient, 1)
            one.backward(gradient)
        optimizer.step()

    return step


def last_stage(model, optimizer):
    def step(points):
        optimizer.zero_grad()
        received, losses = [], []
        for one in points:
            hidden = torch.empty(BATCH, WIDTH, device=one.device)
            dist.recv(hidden, 0)
            received.append(hidden.requires_grad_())
            losses.append((model(hidden) - one.sum(1, keepdim=True).sin()).square().mean() / MICROBATCHES)
        for hidden, loss in zip(reversed(received), reversed(losses)):
            loss.backward()
            dist.send(hidden.grad, 0)
        optimizer.step()
        return torch.stack(losses).sum().detach()

    return step


def train(device, graphed):
    """The losses (of the last stage), the stage's weights, and how many steps were replayed."""
    first = dist.get_rank() == 0
    model = make_stage(first, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step = (first_stage if first else last_stage)(model, optimizer)
    run = pianola.graphed(step) if graphed else step
    chooser = torch.Generator().manual_seed(0)  # the same points: the last stage knows what is wanted of them
    losses = []
    for _ in range(STEPS):
        points = (torch.rand(MICROBATCHES, BATCH, 8, generator=chooser) - 0.5).to(device)
        losses.append(run(points))
    replays = sum(one.replays for one in run.info().signatures) if graphed else 0
    return None if first else torch.stack(losses), list(model.parameters()), replays


def main():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    if dist.get_world_size() == 2:
        expected, weights, _ = train(device, graphed=False)
        losses, found, replays = train(device, graphed=True)
        same = all(map(torch.equal, found, weights)) and (losses is None or torch.equal(losses, expected))
        stage = f"stage {dist.get_rank()} of 2 on {device.type}"
        told = "" if losses is None else f"loss {losses[0]:.4f} to {losses[-1]:.4f}, "
        print(f"{stage}: {told}{replays} of {STEPS} steps replayed", flush=True)
        print(f"{stage}: losses and weights are {'' if same else 'NOT '}those of eager, bit for bit", flush=True)
    else:
        print("a pipeline of two stages wants two ranks", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
