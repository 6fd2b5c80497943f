"""Steps that do something on the host besides calling operations: a replay would not do it again, so they stay eager."""

import collections
import datetime
import functools
import io
import itertools
import logging
import os
import random
import tempfile
import time
import unittest.mock
import warnings

import numpy
import pytest
import torch

import pianola
from twins import MLP, assert_same, assert_same_state, batches, twins

numpy = pytest.importorskip("numpy")


class Trainer:
    """A model and what a loop keeps beside it. `step` is what is graphed; tests replace `after`, which is part of it."""

    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.calls = 0
        self.before = self.last = torch.zeros(())
        self.history = []
        self.counts = {"n": 0}
        self.recent = collections.deque(maxlen=3)

    def train(self, x):
        self.optimizer.zero_grad()
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def run_twins(device, make_step, calls=12, state=None, options=None):
    """Calls an eager step and its graphed twin. `make_step(trainer)` gives the step. Returns the reasons and the graphed one."""
    one, other = map(Trainer, twins(MLP(layers=1), device))
    eager = make_step(one)
    reasons = []
    graphed = pianola.graphed(make_step(other), on_fallback=reasons.append, **(options or {}))
    for x in batches(calls, (4, 16), device):
        assert_same("loss", graphed(x), eager(x))
        assert_same_state(other.model, one.model)
        if state is not None:
            assert state(one) == state(other)
    return reasons, graphed


def expect_eager(device, make_step, *texts, **more):
    reasons, graphed = run_twins(device, make_step, **more)
    assert len(reasons) == 1, reasons
    for text in texts:
        assert text in reasons[0], reasons[0]
    assert graphed.info().signatures[0].state == "eager" and graphed.info().signatures[0].replays == 0


def counts_an_attribute(trainer):
    def step(x):
        trainer.calls += 1
        loss = trainer.train(x)
        return loss * 2 if trainer.calls % 6 == 0 else loss

    return step


def counts_a_cell(trainer):
    n = 0

    def step(x):
        nonlocal n
        n += 1
        return trainer.train(x) * (2 if n % 6 == 0 else 1)

    return step


def counts_an_entry(trainer):
    def step(x):
        trainer.counts["n"] += 1
        return trainer.train(x) * (2 if trainer.counts["n"] % 6 == 0 else 1)

    return step


def counts_in_a_list(trainer):
    seen = [0]

    def step(x):
        seen[0] += 1
        return trainer.train(x) * (2 if seen[0] % 6 == 0 else 1)

    return step


CALLS = {}


def counts_a_global(trainer):
    which = f"trainer {len(CALLS)}"
    CALLS[which] = 0

    def step(x):
        CALLS[which] += 1
        return trainer.train(x) * (2 if CALLS[which] % 6 == 0 else 1)

    return step


def steps_a_schedule(kind):
    def make(trainer):
        schedule = kind(trainer.optimizer)

        def step(x):
            loss = trainer.train(x)
            schedule.step()
            return loss

        return step

    return make


def keeps_an_average(trainer):
    shadow = [p.detach().clone() for p in trainer.model.parameters()]
    count = 0

    def step(x):
        nonlocal count
        loss = trainer.train(x)
        count += 1
        decay = min(0.9, (1 + count) / (10 + count))
        for mine, p in zip(shadow, trainer.model.parameters()):
            mine.lerp_(p.detach(), 1 - decay)
        return loss + sum(mine.sum() for mine in shadow)

    return step


def copies_to_a_target(trainer):
    target = MLP(layers=1).to(next(trainer.model.parameters()).device)
    target.load_state_dict(trainer.model.state_dict())
    steps = 0

    def step(x):
        nonlocal steps
        with torch.no_grad():
            wanted = target(x)
        loss = trainer.train(x - wanted)
        steps += 1
        if steps % 5 == 0:
            target.load_state_dict(trainer.model.state_dict())
        return loss

    return step


class Meter:
    def __init__(self):
        self.total, self.count = 0, 0

    def update(self, n):
        self.total += n
        self.count += 1


def feeds_a_meter(trainer):
    trainer.meter = Meter()

    def step(x):
        loss = trainer.train(x)
        trainer.meter.update(x.shape[0])
        return loss

    return step


def keeps_two_losses(trainer):
    def step(x):
        loss = trainer.train(x)
        trainer.before, trainer.last = trainer.last, loss
        return loss

    return step


def fills_a_list(trainer):
    def step(x):
        loss = trainer.train(x)
        trainer.history.append(loss)
        return loss

    return step


def fills_a_queue(trainer):
    def step(x):
        loss = trainer.train(x)
        trainer.recent.append(x.shape[0])
        trainer.recent.append(trainer.recent[0])
        trainer.history.append(1)
        return loss

    return step


def prints(trainer):
    def step(x):
        print("a step of", x.shape[0])
        return trainer.train(x)

    return step


def logs(trainer):
    logger = logging.getLogger("steps")
    logger.propagate = False
    logger.addHandler(logging.NullHandler())

    def step(x):
        logger.warning("a step of %d", x.shape[0])
        return trainer.train(x)

    return step


def writes_a_file(trainer):
    trainer.file = tempfile.TemporaryFile("w+")

    def step(x):
        trainer.file.write("a step\n")
        return trainer.train(x)

    return step


def saves_an_array(trainer):
    trainer.folder = tempfile.TemporaryDirectory()
    trainer.saved = os.path.join(trainer.folder.name, "shape.npy")

    def step(x):
        numpy.save(trainer.saved, [*x.shape])
        return trainer.train(x)

    return step


def writes_to_memory(trainer):
    trainer.text = io.StringIO()

    def step(x):
        trainer.text.write("a step\n")
        return trainer.train(x)

    return step


@pytest.mark.parametrize(
    "make_step, texts, state",
    [
        (counts_an_attribute, ("calls", "host_writes_test.py"), lambda one: one.calls),
        (counts_a_cell, ("changes n",), None),
        (counts_an_entry, ("counts",), lambda one: one.counts),
        (counts_in_a_list, ("seen",), None),
        (counts_a_global, ("CALLS",), None),
        (keeps_an_average, ("count",), None),
        (copies_to_a_target, ("steps",), None),
        (keeps_two_losses, ("trainer.", "host_writes_test.py"), lambda one: (one.before.item(), one.last.item())),
        (fills_a_list, ("history",), lambda one: [loss.item() for loss in one.history]),
        (fills_a_queue, ("recent",), lambda one: (one.recent, one.history)),
        (prints, ("the step prints", "host_writes_test.py"), None),
        (logs, ("the step logs", "host_writes_test.py"), None),
        (writes_a_file, ("the step writes to a file", "host_writes_test.py"), lambda one: one.file.tell()),
        (saves_an_array, ("the step opens a file", "host_writes_test.py"), None),
        (writes_to_memory, ("changes trainer.text",), lambda one: one.text.getvalue()),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)  # fmt: skip
def test_a_step_that_writes_on_the_host_stays_eager(device, make_step, texts, state):
    expect_eager(device, make_step, *texts, state=state)


def test_a_meter_that_the_step_feeds_counts_on(device):
    """Its method counts for the meter alone: replays call it."""
    reasons, graphed = run_twins(device, feeds_a_meter, state=lambda one: (one.meter.total, one.meter.count))
    assert not reasons and sum(one.replays for one in graphed.info().signatures) > 0


@pytest.mark.parametrize(
    "make_schedule",
    [
        functools.partial(torch.optim.lr_scheduler.StepLR, step_size=5),
        functools.partial(torch.optim.lr_scheduler.MultiStepLR, milestones=[4, 8]),
        functools.partial(torch.optim.swa_utils.SWALR, swa_lr=0.05),
    ],
    ids=["StepLR", "MultiStepLR", "SWALR"],
)
def test_a_schedule_that_the_step_steps_goes_on(device, make_schedule):
    """Replays step it, and give the graph its rates."""
    step, rate = steps_a_schedule(make_schedule), lambda one: one.optimizer.param_groups[0]["lr"]
    reasons, graphed = run_twins(device, step, state=rate)
    assert not reasons and graphed.info().signatures[0].replays > 0


@pytest.mark.parametrize("at", [4, 50, 500])
def test_what_happens_at_a_later_call_happens(device, at):
    def make(trainer):
        n = 0

        def step(x):
            nonlocal n
            n += 1
            return trainer.train(x) * (3 if n == at else 1)

        return step

    expect_eager(device, make, "changes n;", calls=at + 3)


@pytest.mark.parametrize("warmup", [1, 2, 3, 5])
def test_however_few_warm_up_calls_there_are(device, warmup):
    for make_step in (counts_an_attribute, counts_in_a_list, keeps_two_losses, fills_a_list):
        expect_eager(device, make_step, options={"warmup": warmup})


# --- What is harmless ---


def warns(trainer):
    def step(x):
        warnings.warn("steps are old-fashioned", DeprecationWarning)
        return trainer.train(x)

    return step


def prints_when_it_begins(trainer):
    started = []

    def begin():
        if not started:
            print("the first step")
            started.append(True)

    def step(x):
        begin()
        return trainer.train(x)

    return step


def sets_what_is_set(trainer):
    trainer.ready = False

    def step(x):
        trainer.ready = True
        trainer.counts["n"] = 1
        trainer.model.train()
        return trainer.train(x)

    return step


def fills_a_cache_once(trainer):
    cache = {}

    def step(x):
        if x.shape not in cache:
            cache[x.shape] = torch.ones(x.shape, device=x.device)
        return trainer.train(x * cache[x.shape])

    return step


def uses_containers_of_its_own(trainer):
    def step(x):
        parts = []
        by_name = {}
        for i in range(3):
            parts.append(x * i)
            by_name[i] = parts[-1]
        return trainer.train(sum(by_name.values()))

    return step


def reads_a_schedule(trainer):
    schedule = torch.optim.lr_scheduler.StepLR(trainer.optimizer, 100)

    def step(x):
        return trainer.train(x) * schedule.last_epoch

    return step


@pytest.mark.parametrize("warmup", [1, 2, 3])
@pytest.mark.parametrize(
    "make_step", [sets_what_is_set, fills_a_cache_once, uses_containers_of_its_own, reads_a_schedule, warns, prints_when_it_begins]
)
def test_what_changes_nothing_after_the_first_call_is_captured(device, make_step, warmup):
    reasons, graphed = run_twins(device, make_step, options={"warmup": warmup})
    assert not reasons
    assert graphed.info().signatures[0].state == "captured" and graphed.info().signatures[0].replays >= 12 - max(warmup, 2) - 1


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "SGD"])
def test_optimizers_that_keep_their_state_on_the_device_are_captured(device, kind):
    def make(trainer):
        more = {"momentum": 0.9} if kind == "SGD" else {"fused": True, "capturable": device.type == "cuda"}
        trainer.optimizer = getattr(torch.optim, kind)(trainer.model.parameters(), lr=0.01, **more)
        return trainer.train

    reasons, graphed = run_twins(device, make)
    assert not reasons and graphed.info().signatures[0].replays == 9


@pytest.mark.parametrize("norm", [torch.nn.utils.weight_norm, torch.nn.utils.spectral_norm])
def test_weights_that_hooks_of_torch_make_anew_are_no_writes(device, norm):
    def make(trainer):
        torch.manual_seed(0)
        trainer.model.layers[0] = norm(trainer.model.layers[0])
        trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.01)
        return trainer.train

    reasons, graphed = run_twins(device, make)
    assert not reasons and graphed.info().signatures[0].replays == 9


# --- Random numbers, clocks, iterators ---


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kind", ["random", "numpy", "Random", "Generator"])
def test_a_rare_branch_of_the_hosts_random_numbers_is_taken(device, kind, seed):
    """One call in a hundred: no comparison of a few calls would show it."""

    def make(trainer):
        generators = {"random": random, "numpy": numpy.random, "Random": random.Random(seed), "Generator": numpy.random.default_rng(seed)}
        generator = generators[kind]

        def step(x):
            return x * 10 if generator.random() < 0.01 else x * 2

        return step

    x = torch.ones(2, device=device)
    results = []
    for wrap in (lambda step: step, lambda step: pianola.graphed(step, on_fallback=reasons.append)):
        reasons = []
        random.seed(seed)
        numpy.random.seed(seed)
        step = wrap(make(None))
        results.append([step(x) for _ in range(150)])
    if kind in ("Random", "Generator"):
        assert len(reasons) == 1 and "random" in reasons[0] and "PG604" in reasons[0]
    else:  # drawn before the call, and each outcome has a graph
        assert reasons == [] and sum(one.replays for one in step.info().signatures) > 100
    for one, other in zip(*results):
        assert_same("result", one, other)


@pytest.mark.parametrize(
    "ask",
    [time.time, time.monotonic, time.perf_counter, time.perf_counter_ns, time.process_time, datetime.datetime.now],
    ids=lambda ask: ask.__name__,
)
def test_a_step_that_asks_a_clock_stays_eager(device, ask):
    def make(trainer):
        def step(x):
            ask()
            return trainer.train(x)

        return step

    expect_eager(device, make, "clock", "host_writes_test.py")


@pytest.mark.parametrize(
    "iterator_of",
    [
        iter,
        itertools.cycle,
        enumerate,
        lambda values: zip(values, itertools.count()),
        lambda values: map(float, values),
        lambda values: (value for value in values),
        lambda values: itertools.chain(values, values),
        lambda values: itertools.islice(values, 100),
    ],
    ids=["list", "cycle", "enumerate", "zip", "map", "generator", "chain", "islice"],
)
def test_a_step_that_takes_the_next_entry_of_an_iterator_stays_eager(device, iterator_of):
    def make(trainer):
        factors = iterator_of([1.0, 1.0, 1.0, 1.0, 2.0] * 4)

        def step(x):
            factor = next(factors)
            while isinstance(factor, tuple):
                factor = max(factor) if factor[0] == factor[1] else factor[0] or 1.0
            return trainer.train(x * factor)

        return step

    expect_eager(device, make, "next entry", "factors")


class Record:
    def __init__(self):
        self.array, self.bytes, self.place = numpy.zeros(4), bytearray(4), 2

    def take(self):
        """What was written since the last time."""
        written = self.array.tolist() + list(self.bytes)
        self.array[:], self.bytes[:] = 0, bytes(4)
        return written


@pytest.mark.parametrize("store", ["record.array[:] = 7", "record.array[1] = 7", "record.array[record.place] = 7",
                                   "mine = record.array; mine[0] = 7", "record.array[...] = 7", "record.bytes[0] = 7"])
def test_what_is_written_into_an_array_and_not_read_is_no_replays(device, store, tmp_path):
    """The caller reads it, and empties it."""
    scope = {}
    file = tmp_path / "stores.py"
    file.write_text(f"def step(x, record):\n    {store}\n    return x * 2\n")
    exec(compile(file.read_text(), str(file), "exec"), scope)
    ours, eagers, reasons = Record(), Record(), []
    graphed = pianola.graphed(scope["step"], on_fallback=reasons.append)
    for number in range(8):
        x = torch.full((3,), float(number), device=device)
        assert torch.equal(graphed(x, ours), scope["step"](x, eagers))
        assert ours.take() == eagers.take(), number
    assert len(reasons) == 1 and "PG803" in reasons[0]


@pytest.mark.parametrize("array", [numpy.zeros(3, "M8[D]"), numpy.zeros(3, object), numpy.zeros(1 << 18)], ids=["dates", "objects", "large"])
def test_stores_into_arrays_that_are_not_compared_are_eager(device, array):
    def step(x, record):
        record.array[0] = record.place
        return x * 2

    graphed, record = pianola.graphed(step, on_fallback=lambda reason: None), Record()
    record.array = array
    record.place = numpy.datetime64("2020-01-01") if array.dtype.kind == "M" else 3
    for number in range(6):
        x = torch.full((3,), float(number), device=device)
        assert torch.equal(graphed(x, record), x * 2) and record.array[0] == record.place
        record.array[0] = 0 if array.dtype.kind != "M" else numpy.datetime64("1970-01-01")


class Speaker:
    def __init__(self, words):
        self.words = iter(words)


@pytest.mark.parametrize("warmup", [1, 2, 3])
def test_one_warm_up_call_is_not_enough_to_know_an_iterator(device, warmup):
    """Nor is it for the next object that has one."""

    def step(x, speaker):
        return x * next(speaker.words)

    graphed = pianola.graphed(step, warmup=warmup, on_fallback=lambda reason: None)
    for count in (1, 1, 2):  # one by one, and two in turn
        ours, eagers = ([Speaker([1.0] * 6 + [3.0] * 9) for _ in range(count)] for _ in range(2))
        for number in range(12 * count):
            x, turn = torch.full((3,), float(number), device=device), number % count
            assert torch.equal(graphed(x, ours[turn]), step(x, eagers[turn])), (count, number)


def test_drawing_in_the_first_call_alone_counts(device):
    drawn = []

    def make(trainer):
        mine = []

        def step(x):
            if not mine:
                mine.append(random.random())
            return trainer.train(x)

        drawn.append(mine)
        return step

    expect_eager(device, make, "random")


def test_what_a_module_does_when_it_is_imported_does_not_count(device, tmp_path, monkeypatch):
    name = f"imported_by_a_step_on_{device.type}"
    (tmp_path / f"{name}.py").write_text(
        "import random, time\n\n\ndef begin():\n    return random.Random(), time.time()\n\n\nnumbers, began = begin()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def make(trainer):
        def step(x):
            __import__(name)
            return trainer.train(x)

        return step

    reasons, graphed = run_twins(device, make)
    assert reasons == [] and graphed.info().signatures[0].replays > 0


# --- Tensors that are kept ---


def test_tensors_that_the_step_keeps_are_its_own(device):
    """Those that it returns are copies, and those that it keeps would be overwritten."""
    kept = []

    @pianola.graphed(on_fallback=lambda reason: reasons.append(reason))
    def f(x):
        y = x * 2
        kept.append(y)
        return y + 1

    reasons = []
    with torch.no_grad():
        for i in range(8):
            f(torch.full((3,), float(i), device=device))
    assert [y.tolist() for y in kept] == [[2.0 * i] * 3 for i in range(8)]
    assert len(reasons) == 1 and "host_writes_test.py" in reasons[0]


def test_hidden_keepers_are_found(device):
    """A keeper that no Python code shows: a partial of a method in C."""
    kept = []
    keep = functools.partial(list.append, kept)
    reasons = []

    def f(x):
        y = x * 2
        keep(y)
        return y + 1

    graphed = pianola.graphed(f, on_fallback=reasons.append)
    for grad in (False, True):
        kept.clear()
        for i in range(8):
            graphed(torch.full((3,), float(i), device=device, requires_grad=grad))
        assert [y.tolist() for y in kept] == [[2.0 * i] * 3 for i in range(8)]
    assert len(reasons) == 2


# --- The body runs once a call ---


def reads_a_value(trainer):
    return lambda x: trainer.train(x) * (2 if x.sum().item() > 0 else 1)


def reads_a_list(trainer):
    return lambda x: trainer.train(x) * len(x.tolist())


def makes_an_array(trainer):
    return lambda x: trainer.train(x) * float(x.detach().cpu().numpy().size)


def writes_its_input(trainer):
    def step(x):
        x.mul_(1.0)
        return trainer.train(x)

    return step


@pytest.mark.parametrize("warmup", [1, 3])
@pytest.mark.parametrize(
    "make_step",
    [reads_a_value, reads_a_list, makes_an_array, writes_its_input, counts_an_attribute, keeps_two_losses],
)  # fmt: skip
def test_whatever_refuses_the_body_runs_once_a_call(device, make_step, warmup):
    note = unittest.mock.Mock()  # which keeps books where nobody looks

    def make(trainer):
        inner = make_step(trainer)

        def step(x):
            note()
            return inner(x)

        return step

    reasons, _ = run_twins(device, make, options={"warmup": warmup, "islands": "marked"}, calls=8)
    assert len(reasons) == 1 and note.call_count == 16, reasons
