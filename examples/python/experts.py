"""A layer of experts, one on each rank: tokens travel to the expert that their router chose and back, by all_to_all with a fixed
capacity, so that nothing has to be read on the host. Each step is one graph per rank. The weights are those of eager, bit for bit.

    torchrun --nproc-per-node 2 examples/python/experts.py
"""

import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs to give the same bits twice

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_to_all_single

import pianola

STEPS, TOKENS, WIDTH = 40, 32, 16


class Experts(nn.Module):
    """The router is the same on all ranks, the expert is this rank's own."""

    def __init__(self):
        super().__init__()
        self.capacity = TOKENS  # of each rank for each expert: no token is dropped
        torch.manual_seed(0)
        self.router = nn.Linear(WIDTH, dist.get_world_size())
        torch.manual_seed(1 + dist.get_rank())
        self.expert = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, tokens):
        ranks = dist.get_world_size()
        weights, chosen = self.router(tokens).softmax(-1).max(-1)
        is_for = chosen[:, None] == torch.arange(ranks, device=tokens.device)  # one_hot() would read on the host
        before = is_for.long().cumsum(0).gather(1, chosen[:, None])[:, 0] - 1  # tokens of the same expert
        places = chosen * self.capacity + before
        slots = tokens.new_zeros(ranks * self.capacity, WIDTH).index_copy(0, places, tokens)
        arrived = all_to_all_single(torch.empty_like(slots), slots)
        answers = all_to_all_single(torch.empty_like(slots), self.expert(arrived))
        return tokens + weights[:, None] * answers.index_select(0, places)


def train(device, graphed):
    """The losses, the weights, and how many steps were replayed."""
    model = Experts().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def step(tokens):
        optimizer.zero_grad()
        loss = (model(tokens) - tokens.roll(1, -1)).square().mean()
        loss.backward()
        for one in model.router.parameters():  # shared by all
            dist.all_reduce(one.grad)
        optimizer.step()
        return loss.detach()

    run = pianola.graphed(step) if graphed else step
    chooser = torch.Generator().manual_seed(dist.get_rank())
    losses = [run(torch.randn(TOKENS, WIDTH, generator=chooser).to(device)) for _ in range(STEPS)]
    replays = sum(one.replays for one in run.info().signatures) if graphed else 0
    return torch.stack(losses), list(model.parameters()), replays


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
