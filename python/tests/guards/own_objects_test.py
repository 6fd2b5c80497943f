"""Objects that a call makes for itself, in cycles and in its result: no later call is compared with them. What was there
before it is compared, however late it is met."""

import collections
import dataclasses
import functools
import itertools
import typing

import pytest
import torch

import pianola


class Cache:
    """Filled lazily, as those of language models are."""

    def __init__(self):
        self.is_filled = False
        self.parts = []

    def length(self):
        return len(self.parts) if self.is_filled else 0

    def update(self, keys):
        before = self.length()
        self.parts.append(keys)
        self.keys, self.is_filled = keys, True
        return keys * (before + 1)


class Circular(Cache):
    def __init__(self):
        super().__init__()
        self.owners = [self]


@dataclasses.dataclass
class Outputs:
    logits: torch.Tensor
    loss: typing.Optional[torch.Tensor] = None
    parts: typing.Optional[list] = None

    def fill(self):
        if self.loss is None:
            self.loss = self.logits.sum()
        self.parts = [self.logits * 2]
        self.parts.append(self.loss)
        return len(self.parts)


def in_a_cycle(x):
    cache = Circular()
    return cache.update(x) + cache.update(x * 2)


def in_the_result(x):
    outputs = Outputs(x * 3)
    return {"outputs": outputs, "scaled": [x * outputs.fill() * outputs.fill()]}


def in_the_result_alone(x):
    outputs = Outputs(x * 3)
    outputs.fill()
    outputs.fill()
    return outputs


def leaves_of(result):
    if isinstance(result, Outputs):
        return [result.logits, result.loss, *result.parts]
    if isinstance(result, dict):
        return [*leaves_of(result["outputs"]), *result["scaled"]]
    return [result]


@pytest.mark.parametrize("step", [in_a_cycle, in_the_result, in_the_result_alone])
def test_what_a_call_makes_no_later_call_is_compared_with(step, device):
    graphed = pianola.graphed(step)
    results = []
    for number in range(8):
        x = torch.randn(3, 4, device=device)
        results.append((graphed(x), step(x)))
    assert [one.replays for one in graphed.info().signatures] == [5], graphed.info()
    for result, expected in results:  # each call's own, as they are at the end
        assert all(map(torch.equal, leaves_of(result), leaves_of(expected)))
    if isinstance(results[0][0], (Outputs, dict)):
        assert len({id(result) for result, _ in results}) == len(results)


def test_an_object_of_no_known_kind_that_is_returned_is_each_calls_own(device):
    def step(x):
        cache = Cache()
        cache.update(x)
        cache.update(x + 1)
        return cache

    graphed = pianola.graphed(step)
    caches = []
    for _ in range(8):
        x = torch.randn(3, 4, device=device)
        caches.append((x, graphed(x)))
    for x, cache in caches:
        assert cache.is_filled and torch.equal(cache.keys, x + 1) and torch.equal(cache.parts[0], x)
    assert sum(one.replays for one in graphed.info().signatures) >= 4


def test_what_the_caller_puts_back_is_compared(device):
    """The result of one call is from before for the next."""
    kept = collections.deque()

    def step(x):
        outputs = Outputs(x * 2)
        if kept:
            outputs.logits = outputs.logits * kept[0].scale
        outputs.fill()
        outputs.fill()
        outputs.scale = 2.0
        return outputs

    graphed = pianola.graphed(step)
    x = torch.ones(4, device=device)
    for number in range(24):
        if number == 6:
            kept.append(step(x))
        if number == 12:
            kept[0].scale = 5.0
        assert torch.equal(graphed(x).logits, step(x).logits), number


def test_what_something_from_before_leads_to_is_compared(device):
    """Made by a call in its own __init__, and left behind where later calls find it."""
    kept = {}

    def step(x):
        cache = kept.get("cache")
        if cache is None:
            cache = kept["cache"] = Circular()
            cache.scale = 2.0
        return x * cache.scale

    graphed = pianola.graphed(step)
    x = torch.ones(4, device=device)
    for number in range(24):
        if number == 8:
            kept["cache"].scale = 3.0
        if number == 16:
            kept.clear()
        assert torch.equal(graphed(x), step(x)), number
    assert sum(one.replays for one in graphed.info().signatures) >= 6


class Settings:
    def __init__(self, scale=2.0):
        self.scale = getattr(self, "scale", scale)


class Holder:
    def __init__(self, settings):
        self.settings = settings


@pytest.mark.parametrize("begins_again", [False, True], ids=["held", "__init__ called again"])
def test_what_an_own_object_holds_of_before_is_compared(begins_again, device):
    known = Settings()
    find = functools.partial(next, itertools.repeat(known))  # nobody follows it

    def step(x):
        settings = find()
        if begins_again:
            settings.__init__()
        holder = Holder(settings)
        return x * holder.settings.scale

    graphed = pianola.graphed(step)
    x = torch.ones(4, device=device)
    for number in range(16):
        if number == 8:
            known.scale = 3.0
        assert torch.equal(graphed(x), x * known.scale), number
    assert sum(one.replays for one in graphed.info().signatures) == 10


@pytest.mark.parametrize("read", [
    lambda self: self.__dict__["n"], lambda self: vars(self)["n"], lambda self: self.__dict__.get("n"),
])  # fmt: skip
def test_a_property_may_keep_its_value_under_its_own_name(device, read):
    state = type("State", (), {"n": property(read)})()
    state.__dict__["n"] = 0
    step = pianola.graphed(lambda x: x * 2 if state.n > 7 else x * 3)
    for call in range(14):
        state.__dict__["n"] = call
        assert step(torch.ones(1, device=device)).item() == (2.0 if call > 7 else 3.0), call
