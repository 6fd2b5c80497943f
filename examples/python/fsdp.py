"""A residual network learns a function with its parameters sharded over all GPUs of a machine by fully_shard (FSDP2): eagerly, and with
each step one graph per rank. The weights are the same, bit for bit.

    torchrun --nproc-per-node 2 examples/python/fsdp.py
"""

import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs to give the same bits twice

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import pianola

STEPS, BATCH, WIDTH = 40, 64, 64


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        return x + self.layers(x)


def make_sharded_model(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, WIDTH), *(Residual() for _ in range(4)), nn.Linear(WIDTH, 1)).to(device)
    for layer in model:
        fully_shard(layer)  # gathered when it is used, and freed again
    return fully_shard(model)


def train(device, graphed):
    """The losses, the rank's own parts of the weights, and how many steps were replayed."""
    model = make_sharded_model(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    chooser = torch.Generator().manual_seed(dist.get_rank())  # other points on each rank

    def step(points):
        optimizer.zero_grad()
        wanted = (points[:, :1] * 3).sin() * points[:, 1:]
        loss = (model(points) - wanted).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    run = pianola.graphed(step) if graphed else step
    losses = [run(torch.rand(BATCH, 2, generator=chooser).to(device) * 2 - 1).clone() for _ in range(STEPS)]
    replays = sum(one.replays for one in run.info().signatures) if graphed else 0
    return torch.stack(losses), [one.to_local() for one in model.parameters()], replays


def main():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    expected, weights, _ = train(device, graphed=False)
    losses, found, replays = train(device, graphed=True)
    same = torch.equal(losses, expected) and all(map(torch.equal, found, weights))
    rank = f"rank {dist.get_rank()} of {dist.get_world_size()} on {device.type}"
    print(f"{rank}: loss {losses[0]:.3f} to {losses[-1]:.3f}, {replays} of {STEPS} steps replayed", flush=True)
    print(f"{rank}: losses and weights are {'' if same else 'NOT '}those of eager, bit for bit", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
