"""Training steps of a transformer whose tokens go to experts of two ranks: NCCL on two GPUs, Gloo where it only has to run.

Where each rank tells the other how many tokens come, the host reads the counts: sending tokens there and back stays eager, as parts, and
the rest of the step is a graph. At fixed capacity, where what is too much is dropped, the whole step is one.
"""

import gc
import statistics

import pianola
import python_ranks
import torch
import torch.distributed as dist
from python_experts import BLOCKS, EXPERTS, WIDTH, Block
from python_ranks import EAGER, RANKS
from torch import nn
from torch.nn import functional

import measuring
import models

COUNTED, FIXED, FIXED_EAGER = "@pianola.graphed, counted tokens", "@pianola.graphed, fixed capacity", "eager, fixed capacity"
WAYS = (EAGER, COUNTED, FIXED_EAGER, FIXED)
HERE = EXPERTS // RANKS
BATCH, LENGTH = 2, 64
MOST = 2 * BATCH * LENGTH // HERE  # rows of an expert
CHECKED = 20


class AllToAll(torch.autograd.Function):
    """Rows to other ranks; their gradients come back the same way. None: as many to each."""

    @staticmethod
    def forward(ctx, rows, received, sent):
        ctx.received, ctx.sent = received, sent
        result = rows.new_empty((len(rows) if received is None else sum(received), *rows.shape[1:]))
        dist.all_to_all_single(result, rows.contiguous(), received, sent)
        return result

    @staticmethod
    def backward(ctx, gradient):
        return AllToAll.apply(gradient, ctx.sent, ctx.received), None, None


def place_in_group(group, count):
    """How many of the same group come before each."""
    is_of = group[:, None] == torch.arange(count, device=group.device)
    return is_of.cumsum(0).gather(1, group[:, None])[:, 0] - 1


def slots_of(arriving, most):
    """Where each of `most` rows lies among those of the experts, of which `arriving` from each rank for each expert are there."""
    ends = arriving.cumsum(0)
    row = torch.arange(most, device=arriving.device)
    group = torch.searchsorted(ends, row, right=True).clamp(max=len(ends) - 1)  # rank, then expert
    of_ranks_before = (arriving.view(RANKS, HERE).cumsum(0) - arriving.view(RANKS, HERE)).flatten()
    place = row - (ends - arriving)[group] + of_ranks_before[group]
    # One more, for those that are not there, or too many.
    return torch.where((row < ends[-1]) & (place < MOST), group % HERE * MOST + place, HERE * MOST)


class Experts(nn.Module):
    """Top-1 routing; the experts of a rank are two batched products over `MOST` rows each."""

    def __init__(self, values, counted):
        super().__init__()
        self.router = values.linear(WIDTH, EXPERTS)
        self.up = nn.Parameter(values.normal((HERE, WIDTH, 4 * WIDTH), 0.08) * (1 + dist.get_rank()))
        self.down = nn.Parameter(values.normal((HERE, 4 * WIDTH, WIDTH), 0.04) * (1 + dist.get_rank()))
        self.counted, self.plan, self.slots = counted, None, None

    def forward(self, x):
        tokens = x.flatten(0, -2)
        weight, expert = self.router(tokens).softmax(-1).max(-1)
        order = expert.argsort(stable=True)
        exchange = (self.dispatch, self.give_back) if self.counted else (self.dispatch_fixed, self.give_back_fixed)
        rows = exchange[0](tokens[order], expert[order])
        rows = torch.bmm(functional.gelu(torch.bmm(rows, self.up)), self.down)
        back = exchange[1](rows)[order.argsort()]
        return (back * weight[:, None]).view_as(x)

    # --- Counts that the host reads: where rows go is computed on the device, and sending them is left to parts ---

    def dispatch(self, tokens, expert):
        counts = (expert[:, None] == torch.arange(EXPERTS, device=expert.device)).sum(0)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts)
        self.slots = slots_of(arriving, RANKS * len(tokens))
        rows = self.send(tokens, torch.stack([counts, arriving]))
        return rows.new_zeros(HERE * MOST + 1, WIDTH).index_copy(0, self.slots, rows)[:-1].view(HERE, MOST, WIDTH)

    def give_back(self, rows):
        rows = torch.cat([rows.reshape(-1, WIDTH), rows.new_zeros(1, WIDTH)])
        return self.send_back(rows[self.slots])

    def send(self, tokens, counts):
        self.plan = sent, received = counts.view(2, RANKS, HERE).sum(2).tolist()
        rows = AllToAll.apply(tokens, received, sent)
        return functional.pad(rows, (0, 0, 0, RANKS * len(tokens) - len(rows)))

    def send_back(self, rows):
        sent, received = self.plan
        return AllToAll.apply(rows[:sum(received)], sent, received)

    # --- As many for each, whatever comes ---

    def dispatch_fixed(self, tokens, expert):
        most = MOST // RANKS
        place = place_in_group(expert, EXPERTS)
        self.plan = torch.where(place < most, expert * most + place, EXPERTS * most)  # one row more, for those that are dropped
        rows = tokens.new_zeros(EXPERTS * most + 1, WIDTH).index_copy(0, self.plan, tokens)[:-1]
        return AllToAll.apply(rows, None, None).view(RANKS, HERE, most, WIDTH).transpose(0, 1).reshape(HERE, MOST, WIDTH)

    def give_back_fixed(self, rows):
        rows = rows.view(HERE, RANKS, -1, WIDTH).transpose(0, 1).reshape(-1, WIDTH)
        rows = torch.cat([AllToAll.apply(rows, None, None), rows.new_zeros(1, WIDTH)])
        return rows[self.plan]


class Training:
    def __init__(self, device, way, blocks):
        values = models.InitialValues(device)
        self.model = nn.Sequential(*(Block(values, Experts(values, counted=way in (EAGER, COUNTED))) for _ in range(blocks)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.shared = [one for name, one in self.model.named_parameters() if ".experts." not in name or "router" in name]
        self.batch = python_ranks.batch_of(device, BATCH, LENGTH, WIDTH)
        self.graphed, self.loss = None, None
        if way in (COUNTED, FIXED):
            for block in self.model if way == COUNTED else ():
                block.experts.send = pianola.eager(block.experts.send)
                block.experts.send_back = pianola.eager(block.experts.send_back)
            self.graphed = pianola.graphed(self.train)

    def train(self, x):
        self.optimizer.zero_grad()
        loss = self.model(x).square().mean()
        loss.backward()
        gradients = [parameter.grad for parameter in self.shared]
        together = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(together)
        for gradient, mean in zip(gradients, (together / RANKS).split([gradient.numel() for gradient in gradients])):
            gradient.copy_(mean.view_as(gradient))
        self.optimizer.step()
        return loss.detach()

    def step(self):
        self.loss = (self.graphed or self.train)(self.batch)

    def state(self):
        return [self.loss, *(parameter.detach() for parameter in self.model.parameters())]


def check(trainings):
    """Graphed as eager, bit by bit."""
    for _ in range(CHECKED):
        for training in trainings.values():
            training.step()
        for ours, eager in ((COUNTED, EAGER), (FIXED, FIXED_EAGER)):
            measuring.check_equal(ours, trainings[ours].state(), trainings[eager].state())
    for way in (COUNTED, FIXED) if dist.get_backend() == "nccl" else ():
        info = trainings[way].graphed.info()
        if not any(one.replays for one in info.signatures):
            raise RuntimeError(f"{way}: no step was replayed: {info}")


def run_rank(rank, folder, kind, quick):
    device, blocks = python_ranks.begin_rank(rank, folder, kind), 2 if quick else BLOCKS
    trainings = {way: Training(device, way, blocks) for way in WAYS}
    check(trainings)
    iterations = 3 if quick else 20
    samples = measuring.alternate({way: one.step for way, one in trainings.items()}, iterations, 10, 2 if quick else 5)
    title = f"{blocks} blocks of {WIDTH}, {EXPERTS} experts on {RANKS} ranks, {BATCH} x {LENGTH} tokens each, AdamW"
    cases = []
    for kind_of_time, measured in (("wall", "time per step"), ("host", "host time per step")):
        taken = measuring.series(samples, kind_of_time)
        one = measuring.case(title, measured, iterations, EAGER, taken)
        if kind == "cuda" and kind_of_time == "wall":
            median = {way: statistics.median(taken[way]) for way in WAYS}
            share = (median[EAGER] / median[COUNTED]) / (median[FIXED_EAGER] / median[FIXED])
            measuring.require(one, "counted tokens: at least 0.7 of the gain at fixed capacity", share, 0.7, share >= 0.7)
        cases.append(one)
    del trainings
    gc.collect()
    python_ranks.end_rank(rank, folder, cases)


def run(settings):
    yield from python_ranks.run_on_ranks(run_rank, settings)
