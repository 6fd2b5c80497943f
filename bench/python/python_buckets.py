"""What a pool takes that has graphs of one model at 16 lengths, which never run at once: captured in ascending, descending and random order
by torch.cuda.graph into one pool, by pianola.Graph into a pool with plan_memory, and, where it trains, by pianola.graphed; against the graph of the largest length alone. What a
graph gives it copies into memory of the caller's. Pools are counted by torch's own snapshot of its segments; executables lie elsewhere."""

import functools
import importlib.util
import os
import random
import types

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # deterministic algorithms want it, before CUDA starts

import pianola  # noqa: E402
import torch  # noqa: E402
from measuring import case, check_equal, require, synchronize  # noqa: E402
from python_memory import MIB, clean, in_pool  # noqa: E402
from torch.nn import functional  # noqa: E402

ALONE, TORCH, PLANNED = "pianola.Graph, plan_memory, the largest alone", "torch.cuda.graph, one pool", "pianola.Graph, plan_memory, one pool"
GRAPHED = "pianola.graphed, plan_memory"
BUCKETS = 16


class Gpt2:
    """With masks that are given: without, transformers looks at whether a capture is open, and takes other kernels then."""

    def __init__(self, config, device, batch, lengths):
        import transformers as hf

        torch.manual_seed(1)
        self.model = hf.GPT2LMHeadModel(config).to(device)
        self.ids = torch.randint(config.vocab_size, (batch, max(lengths)), generator=torch.Generator().manual_seed(2)).to(device)
        self.masks = {length: torch.ones(length, length, dtype=torch.bool, device=device).tril().expand(1, 1, length, length) for length in lengths}

    def logits(self, length):
        return self.model(input_ids=self.ids[:, :length], attention_mask=self.masks[length]).logits


class Inference(Gpt2):
    """Next words of a batch at a length."""

    def __init__(self, *of):
        super().__init__(*of)
        self.model.eval()
        self.next = torch.zeros(len(self.ids), dtype=torch.int64, device=self.ids.device)

    @torch.no_grad()
    def step(self, length):
        self.next.copy_(self.logits(length)[:, -1].argmax(-1))

    def outcome(self):
        return [self.next]


class Training(Gpt2):
    """An iteration at a length, whose gradients end with it."""

    def __init__(self, *of):
        super().__init__(*of)
        self.optimizer = torch.optim.SGD(self.model.train().parameters(), lr=1e-4)
        self.loss = torch.zeros((), device=self.ids.device)

    def step(self, length):
        loss = functional.cross_entropy(self.logits(length)[:, :-1].flatten(0, 1), self.ids[:, 1:length].flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.loss.copy_(loss.detach())

    def outcome(self):
        return [self.loss]


def workloads(settings):
    import transformers as hf

    small = settings.quick
    config = hf.GPT2Config(n_layer=settings.some(12), n_embd=96 if small else 768, vocab_size=500 if small else 50_257, use_cache=False,
                           attn_pdrop=0, embd_pdrop=0, resid_pdrop=0)
    longest, batch = (32, 2) if small else (512, 8)
    lengths = [longest * (i + 1) // BUCKETS for i in range(BUCKETS)]
    for name, made in (("inference", Inference), ("training (SGD)", Training)):
        yield f"{name} of GPT-2, batch {batch}, {BUCKETS} lengths up to {longest}", functools.partial(made, config, settings.device, batch, lengths), lengths


def orders(lengths):
    return {"ascending": lengths, "descending": lengths[::-1], "random": random.Random(7).sample(lengths, len(lengths))}


def by_pianola(work, device, lengths, **options):
    """The graph of each length, and their pool."""
    pool, graphs = pianola.GraphPool(device, **(options or {"plan_memory": True})), {}
    for length in lengths:
        graphs[length] = pianola.Graph(device)
        graphs[length].capture(functools.partial(work.step, length), warmup=2, pool=pool, accept_capture_path=True)
    return graphs, pool


def by_graphed(work, device, lengths):
    """The calls of each length, which replay from the last of these on."""
    pool = pianola.GraphPool(device, plan_memory=True)
    step = pianola.graphed(work.step, pool=pool, warmup=1, accept_capture_path=True)
    for length in lengths:
        for _ in range(4):
            step(length)
    replayed = sum(one.replays != 0 for one in step.info().signatures)
    if replayed != len(lengths):
        raise RuntimeError(f"{replayed} of {len(lengths)} lengths are graphs: {[one.reason for one in step.info().signatures]}")
    return {length: types.SimpleNamespace(replay=functools.partial(step, length)) for length in lengths}, pool


def by_torch(work, lengths):
    graphs, pool, stream = {}, torch.cuda.graph_pool_handle(), torch.cuda.Stream()
    for length in lengths:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                work.step(length)
        torch.cuda.current_stream().wait_stream(stream)
        graphs[length] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[length], pool=pool, stream=stream):
            work.step(length)
    return graphs, pool


def check(work, graphs, how):
    """Each graph, in random order, against the same step run eagerly from the same state."""
    state = {name: value.clone() for name, value in work.model.state_dict().items()}

    def run(step):
        work.model.load_state_dict(state)
        step()
        synchronize()
        return [one.clone() for one in [*work.outcome(), *work.model.state_dict().values()]]

    for length in random.Random(9).sample(list(graphs), len(graphs)):
        check_equal(f"{how}, length {length}", run(graphs[length].replay), run(lambda: work.step(length)))
    work.model.load_state_dict(state)


def bytes_of(pool):
    return in_pool(pool.id) if pool.device.type == "cuda" else pool.bytes()


def figures_of(make, device, lengths):
    made = {}
    graphs, pool = by_pianola(make(), device, [max(lengths)])
    made[ALONE] = bytes_of(pool)
    del graphs, pool
    for order, ordered in orders(lengths).items():
        if device != "cpu":
            clean(device)
            work = make()
            graphs, pool = by_torch(work, ordered)
            made[f"{TORCH}, {order}"] = in_pool(pool)
            del graphs, pool, work
        clean(device)
        work = make()
        graphs, pool = by_pianola(work, device, ordered)
        made[f"{PLANNED}, {order}"] = bytes_of(pool)
        check(work, graphs, f"{PLANNED}, {order}")
        trains = isinstance(work, Training)
        del graphs, pool, work
        if trains:
            clean(device)
            work = make()
            graphs, pool = by_graphed(work, device, ordered)
            made[f"{GRAPHED}, {order}"] = bytes_of(pool)
            check(work, graphs, f"{GRAPHED}, {order}")
            del graphs, pool, work
    clean(device)
    return made


def by_deterministic_algorithms(settings, cases):
    """What `cases` yields with them; it is about models of transformers."""
    if importlib.util.find_spec("transformers") is None:
        settings.notes.append("transformers is not installed: its models are left out")
        return
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield from cases(settings)
    finally:
        torch.use_deterministic_algorithms(deterministic)


def cases(settings):
    for title, make, lengths in workloads(settings):
        told = figures_of(make, settings.device, lengths)
        made = case(title, "bytes of the pool", 1, ALONE, {name: [bytes / MIB] for name, bytes in told.items()}, unit="MiB",
                    notes=["each replay equals the eager step bit by bit, by deterministic algorithms"])
        for order in orders(lengths) if settings.device != "cpu" else ():
            for how in (PLANNED, GRAPHED):
                if f"{how}, {order}" not in told:
                    continue
                ratio = told[f"{how}, {order}"] / told[ALONE]
                require(made, f"{how}, {order}: at most 1.05x of the largest alone", ratio, 1.05, ratio <= 1.05)
        yield made


def run(settings):
    return by_deterministic_algorithms(settings, cases)
