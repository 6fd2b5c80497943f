"""`graphed(compile=...)`: the modules of a step compiled inside its graph, where that is right; else plain, and a sentence."""

import copy
import dataclasses
import functools
import logging
import math
import threading

import pianola
import pytest
import torch
import torch.utils.checkpoint
from pianola._called_modules import Called, Probe
from pianola._compared_modules import _difference, compare
from pianola._compiled_modules import CompiledModules

from compiling import NEEDS_A_COMPILER, fresh_compiler  # noqa: F401
from twins import MLP, assert_same, assert_same_state, replays

pytestmark = NEEDS_A_COMPILER
CALLS = 40  # until it is decided, and some more


class Net(torch.nn.Module):
    """With statistics that the forward writes."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(8, 32), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 4)

    def forward(self, x):
        return self.last(torch.nn.functional.gelu(self.norm(self.first(x))))


def make_step(model, optimizer):
    def step(x, y):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


class Wide(torch.nn.Module):
    """Whose sums Inductor adds in another order."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 512)

    def forward(self, x):
        return torch.softmax(torch.nn.functional.gelu(self.linear(x)) * 3, -1).square().cumsum(-1)[:, :4] + self.linear(x).mean(-1, keepdim=True)


class Training:
    def __init__(self, device, model=None, **options):
        torch.manual_seed(3)
        self.device = device
        self.model = (Net() if model is None else model).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        step = make_step(self.model, self.optimizer)
        self.step = pianola.graphed(step, **options) if options else step
        self.generator = torch.Generator().manual_seed(4)

    def batch(self, size=6):
        x = torch.randn(size, 8, generator=self.generator)
        return x.to(self.device), torch.randn(size, 4, generator=self.generator).to(self.device)

    def train(self, calls=CALLS, size=6):
        return [self.step(*self.batch(size)).clone() for _ in range(calls)]

    def said(self):
        (told,) = self.step.info().compiled
        return told


def assert_close(one, other):
    for a, b in zip(one, other):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def assert_trained_like_eager(training, calls=CALLS):
    eager = Training(training.device, copy.deepcopy(training.model))
    for one, other in zip(training.train(calls), eager.train(calls)):
        assert_same("loss", one, other)
    assert_same_state(training.model, eager.model)


def test_the_compiled_graph_is_taken_and_told(device):
    training = Training(device, compile=True)
    losses = training.train()
    assert training.said().startswith("compiled: Net, in ")
    assert "of the largest value away from eager" in training.said() or "bit-equal to eager" in training.said()
    assert "us a call compiled" in str(training.step.info())
    assert training.step.state_dict() == {"compiled": True}
    assert max(one.replays for one in training.step.info().signatures) > 10
    assert_close(losses, Training(device).train())


def test_replays_have_the_bits_of_the_compiled_model_without_a_graph(device):
    training = Training(device, compile=True)
    training.train()
    other = Training(device, copy.deepcopy(training.model))
    other.optimizer.load_state_dict(copy.deepcopy(training.optimizer.state_dict()))
    other.generator.set_state(training.generator.get_state())
    before = replays(training.step)
    with CompiledModules([other.model]):
        for _ in range(8):
            assert_same("loss", training.step(*training.batch()), other.step(*other.batch()))
    assert_same_state(training.model, other.model)
    assert replays(training.step) == before + 8


def test_auto_keeps_the_faster_and_says_which(device):
    training = Training(device, compile="auto")
    assert_close(training.train(), Training(device).train())
    told, chosen = training.said(), training.step.state_dict()["compiled"]
    assert told.startswith("compiled: Net" if chosen else "not compiled, as it gains less than 2 %: Net")
    assert "us a call compiled" in told and "us plain" in told
    replays = sum(one.replays for one in training.step.info().signatures)
    training.train(3)
    assert sum(one.replays for one in training.step.info().signatures) == replays + 3


@pytest.mark.parametrize("asked, begin", [(True, "compiled: Net, not timed"), ("auto", "not compiled, not timed")])
def test_without_times_the_request_decides(device, monkeypatch, asked, begin):
    monkeypatch.setattr("pianola._compile_choice._MOST_TURNS", 2)
    training = Training(device, compile=asked)
    training.train()
    assert training.said().startswith(begin)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_choice_is_saved_and_taken_again(device, compiled):
    training = Training(device, compile="auto")
    training.step.load_state_dict({"compiled": compiled})
    training.train()
    assert training.step.state_dict() == {"compiled": compiled}
    assert training.said() == ("compiled: Net, as it was chosen before" if compiled else "not compiled, as it was chosen before")


def test_a_plain_choice_has_the_bits_of_eager(device):
    training = Training(device, compile="auto")
    training.step.load_state_dict({"compiled": False})
    assert_trained_like_eager(training)


def train_without_a_compiler(kind):
    """In a process of its own: torch leaves its evaluator of frames behind when a compilation fails."""

    def broken(*args, **kwargs):
        raise RuntimeError("no compiler on this machine")

    import torch._inductor.compile_fx as inductor

    inductor.compile_fx = broken
    torch.use_deterministic_algorithms(True)
    training = Training(torch.device(kind), compile=True)
    assert_trained_like_eager(training, CALLS + 10)
    assert training.said() == "not compiled: RuntimeError: no compiler on this machine"
    assert replays(training.step) > 10


def test_no_compiler_leaves_the_plain_graph_and_its_bits(device):
    process = torch.multiprocessing.get_context("spawn").Process(target=train_without_a_compiler, args=(device.type,))
    process.start()
    process.join(120)
    assert process.exitcode == 0


log = logging.getLogger("some")


class Logging(Net):
    """As models of transformers do, by a method that the library has added."""

    def forward(self, x):
        log.warning_once("called")
        log.debug("called")
        return super().forward(x)


@functools.lru_cache(None)
def warning_once(self, *args, **kwargs):
    self.warning(*args, **kwargs)


def test_a_module_that_logs_is_compiled(device, monkeypatch, caplog):
    monkeypatch.setattr(logging.Logger, "warning_once", warning_once, raising=False)
    training = Training(device, Logging(), compile=True)
    training.train()
    assert training.said().startswith("compiled: Logging, in ")
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_what_is_not_close_enough_stays_plain(device):
    training = Training(device, Wide(), compile=True, closeness=0.0)
    assert_trained_like_eager(training)
    assert "of the largest value away from eager, and the closeness is 0" in training.said()


@pytest.mark.parametrize("one, other, apart", [
    ([1.0, 2.0], [1.0, 2.0], 0.0),
    ([1.0, 2.0], [1.0, 2.5], 0.25),
    ([1.0, 2.0], [math.nan, 2.0], math.inf),
    ([math.nan, 2.0], [math.nan, 2.0], 0.0),
    ([-math.inf, 2.0], [-math.inf, 3.0], 0.5),
    ([-math.inf, 2.0], [math.inf, 2.0], math.inf),
    ([0.0], [1e-9], math.inf),
    ([1.0], [1.0, 1.0], math.inf),
    ([], [], 0.0),
])  # fmt: skip
def test_a_difference_is_a_share_of_the_largest_value(one, other, apart):
    assert _difference([torch.tensor(one)], [torch.tensor(other)]) == pytest.approx(apart)


def test_what_is_zero_but_for_rounding_is_no_measure():
    some, others = [torch.tensor([2.0]), torch.tensor([1e-9])], [torch.tensor([2.0]), torch.tensor([-1e-9])]
    assert _difference(some, others) == pytest.approx(1e-9, rel=1e-3)


def test_results_that_are_not_found_are_not_called_equal(device):
    @dataclasses.dataclass
    class Result:
        y: torch.Tensor

    class Holds(Net):
        def forward(self, x):
            return Result(super().forward(x))

    torch.manual_seed(0)
    model = Holds().to(device)
    called = Called(model, ((torch.ones(2, 8, device=device),), {}), True, None)
    assert compare(called, ()).apart is None


def test_random_numbers_are_not_compared(device):
    model = lambda: torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 4))  # noqa: E731
    training = Training(device, model(), compile=True)
    training.train()
    assert training.said().endswith("not compared with eager, as it draws random numbers")
    strict = Training(device, model(), compile=True, closeness=1e-3)
    strict.train()
    assert "cannot be compared with eager, as it draws random numbers, and a closeness was asked for" in strict.said()


class Counts(torch.nn.Module):
    """State in places that a state_dict does not have."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 4)
        self.register_buffer("mean", torch.zeros(8))
        self.seen = torch.zeros(8)

    def forward(self, x):
        self.mean = 0.9 * self.mean + x.mean(0)
        self.seen += x.sum(0)
        return self.linear(x + self.mean + 0.1 * self.seen.tanh())


def test_a_call_runs_the_step_once(cpu):
    """Whatever a module keeps, and wherever: the comparison is made on copies."""
    model, x = Counts(), torch.ones(2, 8)
    mean, seen = model.mean.clone(), model.seen.clone()
    before = torch.get_rng_state()
    with Probe([model]) as probe:
        model(x)
    assert_same("mean", model.mean, 0.9 * mean + 1)
    for called in probe.called.values():
        compare(called, ())
    assert_same("mean", model.mean, 0.9 * mean + 1)
    assert_same("seen", model.seen, seen + 2)
    assert torch.equal(torch.get_rng_state(), before)
    assert "_compiled_call_impl" not in model.__dict__ and "_compiled_call_impl" not in model.linear.__dict__


def test_the_outermost_modules_that_are_called_are_compiled(device):
    class Parts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = torch.nn.ModuleDict({"one": torch.nn.Linear(8, 8), "two": torch.nn.Linear(8, 4), "unused": Net()})

    model = Parts().to(device)
    with Probe([model]) as probe:
        model.parts["two"](torch.relu(model.parts["one"](torch.ones(2, 8, device=device))))
    assert [one.module for one in probe.called.values()] == [model.parts["one"], model.parts["two"]]


def gradient_penalty(model):
    def step(x):
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        slope.square().sum().backward()

    return step


def checkpointed(model):
    return lambda x: torch.utils.checkpoint.checkpoint(model, x.clone().requires_grad_(), use_reentrant=False).sum().backward()


def with_a_hook(model):
    model.register_forward_hook(lambda module, args, result: None)
    return lambda x: model(x).sum().backward()


def compiled_already(model):
    model.compile(backend="eager")
    return lambda x: model(x).sum().backward()


@pytest.mark.parametrize("make, why", [
    (gradient_penalty, "the step differentiates its gradients"),
    (checkpointed, "hooks on saved tensors"),
    (with_a_hook, "Net has hooks"),
    (compiled_already, "Net is compiled already"),
])  # fmt: skip
def test_what_compiled_code_cannot_do_stays_plain(device, make, why):
    model = Net().to(device).eval()
    step = pianola.graphed(make(model), compile=True, on_fallback=lambda reason: None)
    for _ in range(CALLS + 10):
        step(torch.ones(2, 8, device=device))
    (told,) = step.info().compiled
    assert told.startswith("not compiled: ") and why in told


def test_a_step_that_throws_while_it_is_tried_goes_on_plainly(device):
    model, calls = Net().to(device), []

    @pianola.graphed(compile=True, on_fallback=lambda reason: None)
    def step(x, throws):
        if throws:
            raise ValueError("the user's own")
        return model(x).sum().detach()

    x = torch.ones(2, 8, device=device)
    for _ in range(8):
        step(x, False)
    with pytest.raises(ValueError, match="the user's own"):
        step(x, True)
    assert "_compiled_call_impl" not in model.__dict__
    for _ in range(8):
        calls.append(step(x, False))
    assert all(torch.isfinite(one) for one in calls)


def test_threads_may_call_before_it_is_decided(cpu):
    torch.ones(1, requires_grad=True).sum().backward()  # torch 2.11 crashes in its first one, where a thread has compiled before
    model = Net().eval()

    @pianola.graphed(compile=True)
    def predict(x):
        with torch.no_grad():
            return model(x)

    x, failures = torch.ones(2, 8), []
    wanted = model(x).detach()

    def call():
        try:
            for _ in range(40):
                torch.testing.assert_close(predict(x), wanted)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not failures and len(predict.info().compiled) <= 1


def test_batches_of_another_size_are_right(device):
    training, eager = Training(device, compile=True), Training(device)
    for size, calls in ((6, 12), (3, 1), (6, 30), (3, 8), (6, 2)):
        assert_close(training.train(calls, size), eager.train(calls, size))
    assert training.said().startswith("compiled: Net")
    replayed = [one.signature for one in training.step.info().signatures if one.replays]
    assert any("[6, 8]" in one for one in replayed) and any("[3, 8]" in one for one in replayed)


def test_a_step_without_modules_says_so(device):
    weight = torch.ones(3, device=device)
    double = pianola.graphed(compile=True)(lambda x: x * weight)
    for _ in range(CALLS):
        assert_same("the product", double(torch.full((3,), 2.0, device=device)), torch.full((3,), 2.0, device=device))
    (told,) = double.info().compiled
    assert told.startswith("not compiled: it calls no module that it finds by a name")


def test_a_step_that_stays_eager_says_so(device):
    model = MLP().to(device)

    @pianola.graphed(compile=True, on_fallback=lambda reason: None)
    def loss(x):
        x.add_(1)
        return model(x).sum()

    for _ in range(CALLS + 10):
        loss(torch.ones(2, 16, device=device))
    (told,) = loss.info().compiled
    assert told.startswith("not compiled: ") and "in place" in told


def test_methods_choose_for_each_object(device):
    class Trainer:
        def __init__(self):
            torch.manual_seed(0)
            self.model = Net().to(device)

        @pianola.graphed(compile=True)
        def predict(self, x):
            with torch.no_grad():
                return self.model(x)

    one, other = Trainer(), Trainer()
    x = torch.ones(6, 8, device=device)
    for _ in range(CALLS):
        one.predict(x)
    assert one.predict.info().compiled[0].startswith("compiled: Net") and not other.predict.info().compiled


def test_a_module_that_is_graphed_by_itself_stays_plain_and_graphed(device):
    model = pianola.graphed(Net().to(device).eval(), compile=True)
    with torch.no_grad():
        for _ in range(CALLS):
            model(torch.ones(2, 8, device=device))
    assert model.forward.info().compiled[0].startswith("not compiled: ")
    model.forward.load_state_dict({"compiled": False})
    assert isinstance(model.forward, pianola.GraphedFunction)


def test_reset_chooses_again(device):
    training = Training(device, compile="auto")
    training.step.load_state_dict({"compiled": False})
    training.train(4)
    training.step.reset()
    assert training.step.state_dict() == {"compiled": None} and not training.step.info().compiled


@pytest.mark.parametrize("closeness", ["near", -1.0, math.nan])
def test_a_strange_closeness_is_refused(closeness):
    with pytest.raises(pianola.UsageError, match="closeness must be None or a number of 0 or more, got"):
        pianola.graphed(lambda x: x, compile=True, closeness=closeness)


@pytest.mark.parametrize("word", ["yes", 2, 1, 0, None])
def test_another_word_is_refused(word):
    with pytest.raises(pianola.UsageError, match="compile must be True, False or 'auto', got"):
        pianola.graphed(lambda x: x, compile=word)


def test_a_strange_state_is_refused():
    step = pianola.graphed(lambda x: x, compile="auto")
    for state in ({"model": 1}, {"compiled": 1}, None, []):
        with pytest.raises(pianola.UsageError, match="no state of a graphed function"):
            step.load_state_dict(state)
