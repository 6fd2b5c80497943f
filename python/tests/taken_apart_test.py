"""Arguments and results of classes that nobody has registered: they are taken apart by their attributes."""

import collections
import dataclasses
import weakref

import pytest
import torch

import pianola
from twins import assert_same, replays

CALLS = 12


def net(device):
    torch.manual_seed(5)
    return torch.nn.Linear(4, 4).to(device)


def rows(device, seed):
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(seed)).to(device)


def reasons(graphed):
    return [one.reason for one in graphed.info().signatures]


# --- Results ---


class Layer:
    """As transformers' DynamicLayer."""

    def __init__(self):
        self.is_initialized = False
        self.keys = self.values = None

    def update(self, keys, values):
        if not self.is_initialized:
            self.keys, self.values = keys, values
            self.is_initialized = True
        return self.keys, self.values


class Cache:
    """As transformers' DynamicCache."""

    def __init__(self, config=None):
        self.layers = []
        self.config = config

    def update(self, keys, values, index):
        while len(self.layers) <= index:
            self.layers.append(Layer())
        return self.layers[index].update(keys, values)


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    cache: Cache


class Mixed(collections.OrderedDict):
    pass


def fill(device, wrap):
    model = net(device)

    @torch.no_grad()
    def prefill(x):
        cache = Cache()
        for index in range(2):
            x = model(x)
            cache.update(x * 2, x + 1, index)
        return wrap(x, cache)

    return prefill


WRAPS = {
    "alone": lambda logits, cache: cache,
    "in a tuple": lambda logits, cache: (logits, cache),
    "in a dict": lambda logits, cache: {"logits": logits, "past": [cache]},
    "in a dataclass": Output,
}


def cache_of(result):
    if isinstance(result, Cache):
        return result
    if isinstance(result, Output):
        return result.cache
    return result["past"][0] if isinstance(result, dict) else result[1]


@pytest.mark.parametrize("wrap", WRAPS)
def test_an_object_that_a_call_makes_is_returned_by_replays(device, wrap):
    eager, graphed = fill(device, WRAPS[wrap]), pianola.graphed(fill(device, WRAPS[wrap]))
    mine = [graphed(rows(device, seed)) for seed in range(CALLS)]
    theirs = [eager(rows(device, seed)) for seed in range(CALLS)]
    assert len({id(cache_of(one)) for one in mine}) == CALLS  # each call's own, with tensors of its own
    for one, other in zip(mine, theirs):
        one, other = cache_of(one), cache_of(other)
        assert type(one) is Cache and vars(one).keys() == vars(other).keys() and len(one.layers) == 2
        for a, b in zip(one.layers, other.layers):
            assert type(a) is Layer and a.is_initialized
            assert_same("keys", a.keys, b.keys)
            assert_same("values", a.values, b.values)
    assert replays(graphed) >= CALLS - 4, reasons(graphed)


def test_what_is_returned_can_be_used_as_eagers(device):
    graphed = pianola.graphed(fill(device, WRAPS["alone"]))
    for seed in range(CALLS):
        cache = graphed(rows(device, seed))
        cache.layers[0].keys.add_(1)
        assert cache.update(rows(device, 0), rows(device, 0), 2)[0] is cache.layers[2].keys
    assert replays(graphed) >= CALLS - 4, reasons(graphed)


class Parent:
    def __init__(self, x):
        self.child = Child(self)
        self.x = x


class Child:
    def __init__(self, parent):
        self.parent = weakref.ref(parent)
        self.doubled = None


def test_a_weak_reference_to_the_object_itself_is_one_again(device):
    def step(x):
        parent = Parent(x + 1)
        parent.child.doubled = x * 2
        return parent

    graphed = pianola.graphed(step)
    for seed in range(CALLS):
        parent = graphed(rows(device, seed))
        assert parent.child.parent() is parent
        assert_same("doubled", parent.child.doubled, rows(device, seed) * 2)
    assert replays(graphed) >= CALLS - 4, reasons(graphed)


class Bound:
    def __init__(self, x):
        self.x = x
        self.method = self.double

    def double(self):
        return self.x * 2


def shared(x):
    layer = Layer()
    layer.keys = x * 2
    return [layer, layer]


def with_a_method(x):
    return Bound(x + 1)


def with_slots(x):
    return Slots(x + 1)


class Slots:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


@pytest.mark.parametrize("step", [shared, with_a_method, with_slots], ids=lambda step: step.__name__)
def test_what_cannot_be_put_together_stays_eager(device, step):
    graphed = pianola.graphed(step)
    for seed in range(CALLS):
        one, other = graphed(rows(device, seed)), step(rows(device, seed))
        if step is shared:
            assert one[0] is one[1]
            assert_same("keys", one[0].keys, other[0].keys)
        else:
            assert_same("x", one.x, other.x)
    assert replays(graphed) == 0 and reasons(graphed)[-1]


# --- Arguments ---


class Batch:
    """As in the Annotated Transformer."""

    def __init__(self, source, pad=0):
        self.source = source
        self.mask = (source != pad).unsqueeze(-2)
        self.count = source.numel()

    def shifted(self):
        return self.source + 1


class Storage:
    def __init__(self, parent, x):
        self._mapping = {"x": x, "index": x.sum(1)}
        self._parent = weakref.ref(parent)


class Data:
    """As PyG's: its attributes lie in a storage that knows it."""

    def __init__(self, x):
        self.__dict__["_store"] = Storage(self, x)

    def __getattr__(self, name):
        return self.__dict__["_store"]._mapping[name]

    def knows_itself(self):
        return self.__dict__["_store"]._parent() is self


def with_batch(device):
    model = net(device)

    def step(batch):
        return (model(batch.shifted()) * batch.mask.squeeze(-2)).sum() / batch.count

    return step, lambda seed: Batch(rows(device, seed))


def with_data(device):
    model = net(device)

    def step(data):
        assert data.knows_itself()
        return model(data.x).sum(1) + data.index

    return step, lambda seed: Data(rows(device, seed))


@pytest.mark.parametrize("build", [with_batch, with_data], ids=lambda build: build.__name__)
@pytest.mark.parametrize("trains", [False, True])
def test_an_object_that_each_call_is_given_anew_is_an_input(device, build, trains):
    (step, make), (eager, _) = build(device), build(device)
    graphed = pianola.graphed(step)
    with torch.set_grad_enabled(trains):
        for seed in range(16):
            assert_same(f"call {seed}", graphed(make(seed)).detach(), eager(make(seed)).detach())
    assert replays(graphed) >= 4, reasons(graphed)


def test_a_number_in_such_an_object_is_compared(device):
    (step, make), (eager, _) = with_batch(device), with_batch(device)
    graphed = pianola.graphed(step)
    for seed in range(30):
        mine, theirs = make(seed), make(seed)
        mine.count = theirs.count = 7 if seed % 10 == 9 else 24
        assert_same(f"call {seed}", graphed(mine), eager(theirs))
    assert replays(graphed) >= 10, reasons(graphed)


class State:
    def __init__(self, device):
        self.total = torch.zeros(4, device=device)


def test_an_object_that_the_function_writes_is_not_taken_apart(device):
    def step(state, x):
        state.total.add_(x.sum(0))
        return x * 2

    graphed = pianola.graphed(step)
    for seed in range(12):  # each call another one
        state = State(device)
        graphed(state, rows(device, seed))
        assert_same("total", state.total, rows(device, seed).sum(0))
    state = State(device)  # and then the same one again and again
    for seed in range(12):
        graphed(state, rows(device, 1))
    expected = torch.zeros(4, device=device)
    for _ in range(12):
        expected.add_(rows(device, 1).sum(0))
    assert_same("total", state.total, expected)
    assert replays(graphed) >= 6, reasons(graphed)


def test_an_attribute_that_the_function_sets_is_set(device):
    def step(batch):
        batch.seen = True
        return batch.source * 2

    graphed = pianola.graphed(step)
    for seed in range(12):
        batch = Batch(rows(device, seed))
        assert_same("result", graphed(batch), batch.source * 2)
        assert batch.seen


class TextCache:
    """As models keep keys and values in it while they write a text; the next text has another one."""

    def __init__(self):
        self.kept = []


@pytest.fixture
def watched(monkeypatch):
    """Calls that were: to watch one takes as long as a hundred calls."""
    calls = []
    run = pianola._host_watch.HostWatch.run
    monkeypatch.setattr(pianola._host_watch.HostWatch, "run", lambda self, *args: calls.append(self) or run(self, *args))
    return calls


def test_caches_that_keep_the_step_eager_are_watched_twice(device, watched):
    def write(x, cache):
        cache.kept.append(x * 2)
        return torch.cat(cache.kept).sum(), cache

    graphed = pianola.graphed(write)
    for text in range(8):
        ours, eager = TextCache(), TextCache()
        for i in range(5):
            x = torch.full((2,), float(text + i), device=device)
            result, given = graphed(x, ours)
            assert given is ours
            assert_same(f"text {text}, word {i}", result, write(x, eager)[0])
        if text == 1:
            few = len(watched)
    assert len(watched) == few


class Settings:
    def __init__(self, factor, returns):
        self.factor = factor
        self.returns = returns


def test_objects_that_keep_one_shape_eager_are_told_apart_in_another(device):
    def scale(x, settings):
        scaled = x * settings.factor
        return (scaled, settings) if len(x) == 1 else scaled

    graphed = pianola.graphed(scale)
    few = [Settings(factor, False) for factor in (2.0, 3.0, 5.0, 7.0)]
    for settings in few[:2]:
        for _ in range(8):
            graphed(torch.ones(1, 2, device=device), settings)
    for settings in (*few[2:], *few):
        for _ in range(8):
            assert graphed(torch.ones(2, 2, device=device), settings)[0, 0].item() == settings.factor


def test_an_object_that_stays_is_looked_at_after_all(device):
    """Those before it kept the step eager; it does not."""

    def scale(x, settings):
        return (x * settings.factor, settings) if settings.returns else x * settings.factor

    graphed = pianola.graphed(scale)
    x = torch.ones(2, device=device)
    for settings in (Settings(2.0, True), Settings(3.0, True)):
        for _ in range(8):
            graphed(x, settings)
    last = Settings(5.0, False)
    for _ in range(300):
        assert graphed(x, last)[0].item() == 5
    assert replays(graphed) >= 30
