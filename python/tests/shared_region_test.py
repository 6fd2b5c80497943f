"""Pools whose graphs plan their memory in one region."""

import collections
import copy
import dataclasses
import random

import pianola
import pytest
import torch
from layer_programs import Gpt
from torch import nn
from torch.nn import functional as F
from twins import assert_same

LENGTHS = range(8, 136, 8)
ORDERS = {"ascending": list(LENGTHS), "descending": list(reversed(LENGTHS)), "shuffled": random.Random(4).sample(list(LENGTHS), len(LENGTHS))}
MIB = 1 << 20


def gpt(seed, device):
    torch.manual_seed(seed)
    model = Gpt(layers=2, size=64)
    model.places = nn.Embedding(max(LENGTHS), 64)
    return model.to(device)


class Buckets:
    """The forward pass of a language model at each length; what it gives is copied out."""

    def __init__(self, device, batch):
        self.model = gpt(7, device).eval()
        self.ids = torch.zeros(batch, max(LENGTHS), dtype=torch.int64, device=device)
        self.loss = torch.zeros(max(LENGTHS), device=device)

    def feed(self, seed):
        self.ids.copy_(torch.randint(50, self.ids.shape, generator=torch.Generator().manual_seed(seed)))

    def compute(self, length):
        ids = self.ids[:, :length]
        logits = self.model(ids)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    @torch.no_grad()
    def step(self, length):
        self.loss[length - 1].copy_(self.compute(length))


def captured(buckets, device, pool, lengths):
    graphs = {}
    for length in lengths:
        graphs[length] = pianola.Graph(device)
        graphs[length].capture(lambda length=length: buckets.step(length), warmup=2, pool=pool)
    return graphs


@pytest.mark.parametrize("order", ORDERS)
def test_buckets_take_what_the_largest_takes(device, order):
    buckets = Buckets(device, batch=64 if device.type == "cuda" else 2)
    alone = pianola.GraphPool(device, plan_memory=True)
    captured(buckets, device, alone, [max(LENGTHS)])
    largest = alone.bytes()
    pool = pianola.GraphPool(device, plan_memory=True, can_sleep=True)
    graphs = captured(buckets, device, pool, ORDERS[order])
    if device.type == "cuda":
        assert pool.bytes() <= 1.05 * largest + 10 * MIB
        assert all(graph.info().planned_bytes for graph in graphs.values())
    twin = copy.deepcopy(buckets.model)
    choose = random.Random(1)
    for i in range(30):
        length = choose.choice(LENGTHS)
        buckets.feed(i)
        graphs[length].replay()
        with torch.no_grad():
            ids = buckets.ids[:, :length]
            expected = F.cross_entropy(twin(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        assert_same(f"length {length}, step {i}", buckets.loss[length - 1], expected)
        if i % 10 == 9:
            with pool.suspended():
                pass


def trained(model):
    optimizer = torch.optim.AdamW(model.parameters())

    def step(ids):
        loss = F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


@pytest.mark.parametrize("way", ["own pool", "given pool", "graphed"])
def test_training_by_length_equals_eager(device, way):
    model = gpt(3, device)
    eager = trained(copy.deepcopy(model))
    pool = pianola.GraphPool(device, plan_memory=True) if way != "own pool" else None
    if way == "own pool":
        step = pianola.FullIteration(trained(model), plan_memory=True)
    elif way == "given pool":
        step = pianola.FullIteration(trained(model), pool=pool)
    else:
        step = pianola.graphed(trained(model), pool=pool)
    choose = random.Random(2)
    for i in range(40):
        ids = torch.randint(50, (4, choose.choice([8, 16, 24, 32])), generator=torch.Generator().manual_seed(i)).to(device)
        torch.manual_seed(i)  # of the dropout
        loss = step(ids)
        torch.manual_seed(i)
        assert_same(f"call {i}", loss, eager(ids))
    assert sum(one.replays for one in step.info().signatures) >= 10


def replays_of(info):
    return sum(one.replays for one in info.signatures)


class TrainedLengths:
    """An iteration whose loss and gradients are left behind."""

    def __init__(self, model):
        self.model = model

    def __call__(self, ids):
        self.model.zero_grad()
        loss = F.cross_entropy(self.model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        return loss.detach()


def ids_of(length, seed, batch, device):
    return torch.randint(50, (batch, length), generator=torch.Generator().manual_seed(seed)).to(device)


def bank_bytes(device, model, lengths, batch):
    pool = pianola.GraphPool(device, plan_memory=True)
    step = pianola.graphed(TrainedLengths(model), pool=pool, warmup=1, outputs="alias")
    for length in lengths:
        while not any(one.graphs for one in step.info().signatures if str(length) in one.signature):
            step(ids_of(length, 0, batch, device))
    return pool.bytes()


@pytest.mark.parametrize("order", ORDERS)
def test_a_bank_of_steps_takes_the_largest_and_results(device, order):
    batch = 64 if device.type == "cuda" else 2
    model = gpt(3, device).eval()  # without dropout
    if device.type == "cuda":
        alone = bank_bytes(device, copy.deepcopy(model), [max(LENGTHS)], batch)
    eager = copy.deepcopy(model)
    expected_of = TrainedLengths(eager)
    pool = pianola.GraphPool(device, plan_memory=True)
    step = pianola.graphed(TrainedLengths(model), pool=pool, warmup=1, outputs="alias")
    choose, held = random.Random(6), {}
    lengths = [length for length in ORDERS[order] for _ in range(4)] + choose.choices(LENGTHS, k=40)
    for i, length in enumerate(lengths):
        ids = ids_of(length, i, batch, device)
        held[length] = step(ids), expected_of(ids).clone()
        for other, (loss, expected) in held.items():
            assert_same(f"call {i} of length {length}: loss of length {other}", loss, expected)
        for ours, theirs in zip(model.parameters(), eager.parameters()):
            assert_same(f"call {i}: a gradient", ours.grad, theirs.grad)
    assert replays_of(step.info()) >= 50
    if device.type == "cuda":
        results = sum(p.numel() * p.element_size() + 512 for p in model.parameters()) + 1024
        assert pool.bytes() <= 1.05 * (alone + len(LENGTHS) * results) + 24 * MIB


@dataclasses.dataclass
class Outputs(collections.OrderedDict):
    """As transformers has it."""

    logits: torch.Tensor

    def __post_init__(self):
        self["logits"] = self.logits


class EndedLengths:
    """An iteration whose gradients end with it, and whose loss is copied out. Most of its memory are the logits."""

    def __init__(self, device, batch, words):
        torch.manual_seed(5)
        self.model = nn.Sequential(nn.Embedding(words, 64), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, words)).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.ids = torch.randint(words, (batch, max(LENGTHS)), generator=torch.Generator().manual_seed(6)).to(device)
        self.loss = torch.zeros((), device=device)

    def outputs(self, ids):
        return Outputs(logits=self.model(ids))

    def __call__(self, length):
        ids = self.ids[:, :length]
        loss = F.cross_entropy(self.outputs(ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.loss.copy_(loss.detach())


def test_an_observed_call_has_no_more_in_use_than_an_eager_one(device):
    eager, graphed = EndedLengths(device, 16, 500), pianola.graphed(EndedLengths(device, 16, 500))
    for length in (64, 128):
        eager(length), eager(length)
        bound, seen = (pianola.predict_memory(lambda: step(length), device=device, warmup=0).bound_bytes for step in (eager, graphed))
        assert seen <= 1.01 * bound, length


@pytest.mark.parametrize("order", ORDERS)
def test_a_bank_whose_gradients_end_takes_what_graphs_take(device, order):
    batch, words = (64, 8192) if device.type == "cuda" else (2, 50)
    pools = [pianola.GraphPool(device, plan_memory=True) for _ in range(2)]
    work, eager, captured_work = (EndedLengths(device, batch, words) for _ in range(3))
    graphs = {}
    for length in ORDERS[order]:
        graphs[length] = pianola.Graph(device)
        graphs[length].capture(lambda length=length: captured_work(length), warmup=1, pool=pools[0])
    step = pianola.graphed(work, pool=pools[1], warmup=1)
    lengths = [length for length in ORDERS[order] for _ in range(4)] + random.Random(9).choices(LENGTHS, k=30)
    for i, length in enumerate(lengths):
        step(length), eager(length), graphs[length].replay()
        for other in (work, captured_work):
            assert_same(f"call {i} of length {length}: loss", other.loss, eager.loss)
            for ours, theirs in zip(other.model.parameters(), eager.model.parameters()):
                assert ours.grad is None or other is captured_work
                assert_same(f"call {i} of length {length}: a parameter", ours, theirs)
    assert replays_of(step.info()) >= 2 * len(LENGTHS) + 30
    if device.type == "cuda":  # matrix products have workspaces of 2 x 32 MiB, which the warm-up of a Graph puts elsewhere
        assert pools[1].bytes() <= 1.05 * pools[0].bytes() + 72 * MIB


def test_a_bank_in_a_pool_of_its_own_equals_eager(device):
    model = gpt(3, device)
    eager = trained(copy.deepcopy(model))
    step = pianola.graphed(trained(model), plan_memory=True, warmup=1)
    choose = random.Random(2)
    for i in range(64):
        ids = ids_of(choose.choice(list(LENGTHS)[:6]), i, 4, device)
        torch.manual_seed(i)  # of the dropout
        loss = step(ids)
        torch.manual_seed(i)
        assert_same(f"call {i}", loss, eager(ids))
    assert replays_of(step.info()) >= 20


@pytest.mark.parametrize("outputs", ["clone", "alias"])
def test_a_bank_of_inference_with_plan_memory_equals_eager(device, outputs):
    model = gpt(5, device).eval()
    call = torch.no_grad()(lambda ids: model(ids))
    graphed = pianola.graphed(call, plan_memory=True, warmup=1, outputs=outputs)
    choose, held = random.Random(3), {}
    for i in range(96):
        length = choose.choice(LENGTHS)
        ids = ids_of(length, i, 2, device)
        held[length] = graphed(ids), call(ids)
        for other, (logits, expected) in held.items():
            assert_same(f"call {i} of length {length}: length {other}", logits, expected)
    assert replays_of(graphed.info()) >= 40


@pytest.mark.parametrize("given", [False, True])
def test_training_and_validation_hold_results_of_each_other(device, given):
    model = gpt(3, device).eval()
    eager = copy.deepcopy(model)
    pool = pianola.GraphPool(device, plan_memory=True) if given else None

    def validation(of):
        return torch.no_grad()(lambda ids: of(ids))

    step = pianola.FullIteration(TrainedLengths(model), validation(model), pool=pool, plan_memory=True, warmup=1)
    expected_of = {"training": TrainedLengths(eager), "validation": validation(eager)}
    choose, held = random.Random(8), {}
    for i in range(64):
        key = choose.choice(["training", "validation"]), choose.choice([16, 32, 64, 128])
        ids = ids_of(key[1], i, 4, device)
        # In a pool of their own lengths of one stage overwrite each other.
        held[key if given else key[0]] = step(ids, stage=key[0]), expected_of[key[0]](ids).clone()
        for other, (result, expected) in held.items():
            assert_same(f"call {i}, {key}: result of {other}", result, expected)
        for ours, theirs in zip(model.parameters(), eager.parameters()):
            assert_same(f"call {i}, {key}: a gradient", ours.grad, theirs.grad)
    assert replays_of(step.info()) >= 24


def test_a_step_that_keeps_scratch_while_it_is_captured_equals_eager(device):
    model = gpt(3, device).eval()
    eager = TrainedLengths(copy.deepcopy(model))
    kept = []  # what lies in it then is checked in C++: here each change of the list is a signature of its own

    def step(ids):
        scratch = F.one_hot(ids, 50).float() * 3
        if pianola.is_current_stream_capturing() and ids.shape[1] == 16:
            kept.append(scratch)
        return TrainedLengths(model)(ids) + 0 * scratch.sum()

    graphed = pianola.graphed(step, plan_memory=True, warmup=1, accept_capture_path=True)
    for i in range(40):
        ids = ids_of(16 if i % 2 else 64, i, 8, device)
        assert_same(f"call {i}", graphed(ids), eager(ids))
    assert kept


def test_calls_without_gradients_may_have_such_a_pool(device):
    model = gpt(5, device).eval()
    call = pianola.graphed(copy.deepcopy(model), pool=pianola.GraphPool(device, plan_memory=True))
    with torch.no_grad():
        for i in range(12):
            ids = torch.randint(50, (2, 8 + 8 * (i % 2)), generator=torch.Generator().manual_seed(i)).to(device)
            assert_same(f"call {i}", call(ids), model(ids))
    assert sum(one.replays for one in call.forward.info().signatures) >= 4


def test_a_capture_without_a_warm_up_run_is_refused(device):
    pool = pianola.GraphPool(device, plan_memory=True)
    with pytest.raises(pianola.UsageError, match="plan_memory needs a warm-up run"):
        pianola.Graph(device).capture(lambda: torch.ones(2, device=device), warmup=0, pool=pool)
