"""Training of a small GPT whose layers are graphs, with the optimizer as it comes: pianola.graph_layers against graphed callables that
are made for each layer by hand, and against the whole iteration as one graph. Embedding, head and loss are eager where layers are.

All train alike, bit for bit. torch's callables do with one microbatch only: with four, their loss is off by 1.3 % behind
ten steps on an H200.
"""

import measuring
import models
import pianola
import torch
from measuring import alternate, case, check_equal, series
from torch import nn
from torch.nn import functional

EAGER = "eager Python"
TORCH = "torch.cuda.make_graphed_callables of each layer"
CALLABLES = "pianola.make_graphed_callables of each layer"
LAYERS = "pianola.graph_layers"
UPDATED = "pianola.graph_layers, optimizer.step graphed"
WHOLE = "pianola.FullIteration, branches = 0"

BLOCKS, WIDTH, WORDS, LENGTH, BATCH = 8, 256, 1000, 64, 2
CHECKED = 10
ITERATIONS, BURST = 10, 5
MEMORY_STEPS = 8


class Gpt(nn.Module):
    def __init__(self, device, blocks):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH, device=device)
        self.blocks = models.transformer(device, blocks, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, device=device)
        self.head = nn.Linear(WIDTH, WORDS, device=device)

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Training:
    def __init__(self, settings, way, microbatches):
        torch.manual_seed(1)
        self.device = settings.device
        self.model = Gpt(self.device, settings.some(BLOCKS))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        generator = torch.Generator().manual_seed(2)
        self.batches = [torch.randint(WORDS, (BATCH, LENGTH), generator=generator).to(self.device) for _ in range(microbatches)]
        self.way, self.loss, self.graphs = way, None, None
        self.update = self.optimizer.step
        self.iteration = None
        blocks = self.model.blocks
        if way in (LAYERS, UPDATED):
            self.graphs = pianola.graph_layers(self.model, type(blocks[0]), branches=0)
        if way == UPDATED:
            self.update = pianola.graphed(lambda: self.optimizer.step(), branches=0)
        if way == WHOLE:
            self.iteration = pianola.FullIteration(self.train, warmup=3, branches=0)
        if way in (TORCH, CALLABLES):
            sample = torch.randn(BATCH, LENGTH, WIDTH, device=self.device, requires_grad=True)
            make = torch.cuda.make_graphed_callables if way == TORCH else pianola.make_graphed_callables
            for i, block in enumerate(make(tuple(blocks), tuple((sample.detach().clone().requires_grad_(),) for _ in blocks))):
                blocks[i] = block

    def train(self, batches):
        self.optimizer.zero_grad()
        total = 0
        for ids in batches:
            loss = functional.cross_entropy(self.model(ids).flatten(0, 1), ids.flatten()) / len(batches)
            loss.backward()
            total = total + loss.detach()
        self.update()
        return total

    def step(self):
        self.loss = (self.iteration or self.train)(self.batches)

    def state(self):
        kept = self.optimizer.state_dict()["state"]
        return [self.loss.detach().clone(), *[p.detach() for p in self.model.parameters()],
                *[kept[i][name] for i in sorted(kept) for name in ("exp_avg", "exp_avg_sq")]]

    def require_replays(self):
        if self.graphs is not None:
            eager = [name for name in self.graphs if not any(one.replays for one in self.graphs[name].info().signatures)]
            if eager:
                raise RuntimeError(f"layers without replays: {eager}: {self.graphs.info()}")
        for graphed in (self.iteration, self.update if self.way == UPDATED else None):
            if graphed is not None and not any(one.replays for one in graphed.info().signatures):
                raise RuntimeError(f"{self.way}: no replay: {graphed.info()}")


def ways(settings, microbatches):
    return (EAGER, LAYERS, UPDATED, WHOLE, CALLABLES) + ((TORCH,) if settings.device == "cuda" and microbatches == 1 else ())


def times_of(settings, microbatches):
    made = {way: Training(settings, way, microbatches) for way in ways(settings, microbatches)}
    for _ in range(CHECKED):
        for training in made.values():
            training.step()
        for way, training in made.items():
            check_equal(f"{microbatches} microbatches, {way}", training.state(), made[EAGER].state())
    for training in made.values():
        training.require_replays()
    iterations = settings.some(ITERATIONS)
    samples = alternate({way: training.step for way, training in made.items()}, iterations, BURST, settings.rounds)
    words = f"{microbatches} microbatch{'es' if microbatches > 1 else ''}"
    title = f"GPT {settings.some(BLOCKS)} x {WIDTH}, batch {BATCH} x {LENGTH}, {words}, AdamW"
    cases = []
    for kind, measured in (("wall", "time per step"), ("host", "host time per step")):
        taken = series(samples, kind)
        one = case(title, measured, iterations, CALLABLES, taken)
        if kind == "wall" and settings.device == "cuda":
            measuring.require_ratio(one, LAYERS, CALLABLES, taken[LAYERS], taken[CALLABLES], 1.05)
            if TORCH in taken:
                measuring.require_ratio(one, LAYERS, TORCH, taken[LAYERS], taken[TORCH], 1.05)
            measuring.require_ratio(one, UPDATED, WHOLE, taken[UPDATED], taken[WHOLE], 1.15)
        cases.append(one)
    return cases


def mebibytes(settings, way, microbatches):
    """Reserved by torch for training, after its steps."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    training = Training(settings, way, microbatches)
    for _ in range(MEMORY_STEPS):
        training.step()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return (torch.cuda.memory_reserved() - before) / 2**20


def memory_of(settings):
    mebibytes(settings, EAGER, 1)  # what a process has only once
    taken = {}
    for way in (EAGER, CALLABLES, TORCH, LAYERS):
        for microbatches in (1,) if way == TORCH else (1, 4):
            taken[f"{way}, {microbatches} microbatch{'es' if microbatches > 1 else ''}"] = [mebibytes(settings, way, microbatches)]
    one, four = (f"{LAYERS}, {words}" for words in ("1 microbatch", "4 microbatches"))
    hand = f"{CALLABLES}, 4 microbatches"
    made = case(f"GPT {BLOCKS} x {WIDTH}, batch {BATCH} x {LENGTH}, AdamW", "memory reserved by torch", MEMORY_STEPS, hand, taken, unit="MiB")
    measuring.require_ratio(made, four, one, taken[four], taken[one], 1.0)
    measuring.require_ratio(made, four, hand, taken[four], taken[hand], 1.05)
    return made


def run(settings):
    if settings.device == "cuda":
        yield memory_of(settings)  # first: what others hold would count
    for microbatches in (1, 4):
        yield from times_of(settings, microbatches)
