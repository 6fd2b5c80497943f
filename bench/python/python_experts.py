"""Training steps of a transformer whose tokens go to experts, on one GPU: grouped matrix products, whose group sizes stay on the device.
No part of such a step has to stay eager."""

import math

import measuring
import models
import pianola
import torch
from measuring import alternate, case, check_equal, series
from torch import nn
from torch.nn import functional

EAGER, GRAPHED, BY_HAND = "eager Python", "@pianola.graphed", "torch.cuda.graph"
BLOCKS, WIDTH, HEADS, EXPERTS, CHOICES = 8, 256, 8, 8, 2
BATCH, LENGTH = 2, 128
WARMUP, CHECKED = 3, 10
ITERATIONS, BURST = 20, 10


class Experts(nn.Module):
    """The rows of each expert lie together; no row is dropped."""

    def __init__(self, values, count=EXPERTS):
        super().__init__()
        self.router = values.linear(WIDTH, count)
        self.up = nn.Parameter(values.normal((count, WIDTH, 4 * WIDTH), math.sqrt(2 / WIDTH)))
        self.down = nn.Parameter(values.normal((count, 4 * WIDTH, WIDTH), math.sqrt(0.5 / WIDTH)))

    def forward(self, x):
        tokens = x.flatten(0, -2)
        weights, chosen = self.router(tokens).softmax(-1).topk(CHOICES)
        chosen = chosen.flatten()
        order = chosen.argsort(stable=True)
        ends = (chosen[:, None] == torch.arange(len(self.up), device=x.device)).sum(0).cumsum(0).to(torch.int32)
        rows = tokens[order // CHOICES].bfloat16()
        hidden = functional.gelu(torch._grouped_mm(rows, self.up.bfloat16(), offs=ends))
        rows = torch._grouped_mm(hidden, self.down.bfloat16(), offs=ends)
        back = rows[order.argsort()].view(-1, CHOICES, WIDTH)
        return (back * weights[..., None]).sum(1).view_as(x)


class Block(models.Block):
    """Its second half are experts."""

    def __init__(self, values, experts):
        super().__init__(values, WIDTH, HEADS)
        self.up, self.down, self.experts = None, None, experts

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.experts(self.norm2(x))


class Training:
    def __init__(self, settings, way):
        device = settings.device
        values = models.InitialValues(device)
        self.model = nn.Sequential(*(Block(values, Experts(values)) for _ in range(settings.some(BLOCKS))))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True, capturable=device != "cpu")
        self.x = torch.randn(BATCH, LENGTH, WIDTH, generator=torch.Generator().manual_seed(2)).to(device)
        self.way, self.loss, self.graphed = way, None, None
        if way == GRAPHED:
            self.graphed = pianola.graphed(self.train, warmup=WARMUP)
        if way == BY_HAND:
            self.graph = self._captured()

    def _captured(self):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARMUP):
                self.loss = self.train(self.x)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.captured_loss = self.train(self.x)
        return graph

    def train(self, x):
        self.optimizer.zero_grad()
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def step(self):
        if self.way == BY_HAND:
            self.graph.replay()
            self.loss = self.captured_loss
        else:
            self.loss = (self.graphed or self.train)(self.x)

    def state(self):
        return [self.loss, *(parameter.detach() for parameter in self.model.parameters())]


def run(settings):
    ways = (EAGER, GRAPHED) + ((BY_HAND,) if settings.device == "cuda" else ())
    made = {way: Training(settings, way) for way in ways}
    for number in range(WARMUP + CHECKED):
        for way, training in made.items():
            if way != BY_HAND or number >= WARMUP:
                training.step()
        if number >= WARMUP:
            for way, training in made.items():
                check_equal(way, training.state(), made[EAGER].state())
    info = made[GRAPHED].graphed.info()
    if not any(one.replays for one in info.signatures) or info.parts or any(one.misses for one in info.signatures):
        raise RuntimeError(f"it is not replayed in one graph: {info}")
    samples = alternate({way: one.step for way, one in made.items()}, settings.some(ITERATIONS), BURST, settings.rounds)
    title = f"{settings.some(BLOCKS)} blocks of {WIDTH}, {EXPERTS} experts, {CHOICES} for each of {BATCH} x {LENGTH} tokens, AdamW"
    for kind, measured in (("wall", "time per step"), ("host", "host time per step")):
        taken = series(samples, kind)
        one = case(title, measured, settings.some(ITERATIONS), BY_HAND if BY_HAND in taken else EAGER, taken)
        if kind == "wall" and BY_HAND in taken:
            measuring.require_ratio(one, GRAPHED, BY_HAND, taken[GRAPHED], taken[BY_HAND], 1.0)
        yield one
