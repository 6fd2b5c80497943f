"""Pools whose graphs plan their memory in one region."""

import copy
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
