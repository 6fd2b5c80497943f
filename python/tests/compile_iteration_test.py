"""FullIteration(compile=...): what it computes, what it chooses for each stage, and what it says."""

import contextlib
import copy
import gc
import threading
import weakref

import pianola
import pytest
import torch

from compiling import NEEDS_A_COMPILER, fresh_compiler  # noqa: F401
from twins import assert_same, assert_same_state

pytestmark = NEEDS_A_COMPILER
CALLS = 40  # until it is decided, and some more


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 4))

    def forward(self, x):
        return self.layers(x)


class Broken(Net):
    """A part of which Inductor has to leave to Python."""

    def forward(self, x):
        torch._dynamo.graph_break()
        return super().forward(x)


class Training:
    def __init__(self, device, model=Net, **options):
        torch.manual_seed(3)
        self.device = device
        self.model = model().to(device)
        self.optimizer = pianola.optim.SGD(self.model.parameters(), lr=1e-2, momentum=0.9)
        self.generator = torch.Generator().manual_seed(4)
        self.iteration = pianola.FullIteration(self.train_step, self.evaluate, **options) if options else None

    def loss_of(self, batch):
        x, target = batch
        return torch.nn.functional.mse_loss(self.model(x), target)

    def train_step(self, microbatches):
        self.optimizer.zero_grad()
        losses = []
        for batch in microbatches:
            loss = self.loss_of(batch)
            loss.backward()
            losses.append(loss.detach())
        self.optimizer.step()
        if len(losses) == 3:
            raise pianola.UsageError("no more batches")
        return torch.stack(losses)

    def evaluate(self, microbatches):
        with torch.no_grad():
            return torch.stack([self.loss_of(batch) for batch in microbatches])

    def batch(self, size=6, count=2):
        make = lambda columns: torch.randn(size, columns, generator=self.generator).to(self.device)  # noqa: E731
        return [(make(8), make(4)) for _ in range(count)]

    def run(self, calls=CALLS, size=6, stage="training"):
        step = self.evaluate if stage == "validation" else self.train_step
        run = step if self.iteration is None else lambda batch: self.iteration(batch, stage=stage)
        return [run(self.batch(size)).clone() for _ in range(calls)]


def assert_close(one, other):
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def replays(iteration, stage="training"):
    return sum(one.replays for one in iteration.info().signatures if one.stage == stage)


def test_the_compiled_graph_is_taken_and_told(device):
    training, eager = Training(device, compile=True), Training(device)
    assert_close(training.run(), eager.run())
    (told,) = training.iteration.info().compiled
    assert told.startswith("training: compiled: Net, in ") and "us a call compiled" in told
    assert "Compiled modules" in str(training.iteration.info())
    assert replays(training.iteration) > 10
    assert training.iteration.state_dict() == {"compiled": {"training": True, "validation": None}}


def test_each_stage_chooses_and_hooks_run_once_for_each_iteration(device):
    stages = []
    training, eager = Training(device, compile=True, after_iteration=stages.append), Training(device)
    for stage in ("training", "validation", "training", "validation"):
        assert_close(training.run(20, stage=stage), eager.run(20, stage=stage))
    assert stages == (["training"] * 20 + ["validation"] * 20) * 2
    told = training.iteration.info().compiled
    assert [one.split(":")[:2] for one in sorted(told)] == [["training", " compiled"], ["validation", " compiled"]]


def test_auto_takes_either_and_keeps_it(device):
    training = Training(device, compile="auto")
    training.run(120)
    (told,) = training.iteration.info().compiled
    assert told.startswith(("training: compiled: Net", "training: not compiled, as it gains less than 2 %: Net"))
    state = training.iteration.state_dict()
    again = Training(device, lambda: copy.deepcopy(training.model), compile="auto")
    again.iteration.load_state_dict(state)
    again.run(20)
    (said,) = again.iteration.info().compiled
    assert said.endswith("as it was chosen before") and ("not" in said) == (not state["compiled"]["training"])


def test_what_cannot_be_compiled_stays_plain_and_bit_equal(device):
    training, eager = Training(device, Broken, compile=True), Training(device, Broken)
    for one, other in zip(training.run(), eager.run()):
        assert_same("losses", one, other)
    assert_same_state(training.model, eager.model)
    (told,) = training.iteration.info().compiled
    assert told.startswith("training: not compiled: ")
    assert replays(training.iteration) > 10


def test_what_is_not_close_enough_stays_plain(device):
    training, eager = Training(device, compile=True, closeness=0.0), Training(device)
    losses, wanted = training.run(), eager.run()
    (told,) = training.iteration.info().compiled
    if "not compiled" in told:
        assert "and the closeness is 0" in told
        for one, other in zip(losses, wanted):
            assert_same("losses", one, other)
    else:
        assert "bit-equal to eager" in told


def test_batches_of_another_size_are_right(device):
    training, eager = Training(device, compile=True), Training(device)
    for size, calls in ((6, 12), (3, 1), (6, 30), (3, 8), (6, 2)):
        assert_close(training.run(calls, size), eager.run(calls, size))
    assert training.iteration.info().compiled[0].startswith("training: compiled: Net")
    shapes = [one.signature for one in training.iteration.info().signatures if one.replays]
    assert any("[6, 8]" in one for one in shapes) and any("[3, 8]" in one for one in shapes)


def test_static_inputs_are_read_where_they_are(device):
    training, eager = Training(device, compile=True), Training(device)
    inputs = pianola.StaticInputs(device)
    losses, wanted = [], []
    for _ in range(CALLS):
        inputs.load(training.batch())
        losses.append(training.iteration(inputs).clone())
        wanted.append(eager.train_step(eager.batch()))
    assert_close(losses, wanted)
    (told,) = training.iteration.info().compiled
    assert told.startswith("training: compiled: Net")


def test_buckets_are_not_compiled(device):
    training, eager = Training(device, compile=True), Training(device)
    inputs = pianola.StaticInputs(device, buckets=pianola.Buckets([4, 8], dim=0))
    for size in (3, 8, 4, 7) * 6:
        inputs.load(training.batch(size))
        one = training.iteration(inputs).clone()
        padded = [tuple(torch.nn.functional.pad(part, (0, 0, 0, inputs.bucket - size)) for part in batch) for batch in eager.batch(size)]
        assert_same("losses", one, eager.train_step(padded))
    (told,) = training.iteration.info().compiled
    assert told == "training: not compiled: its static inputs have buckets, whose graphs are captured before they have run once"


def test_a_reset_chooses_anew(device):
    training, eager = Training(device, compile=True), Training(device)
    assert_close(training.run(), eager.run())
    training.iteration.reset()
    assert training.iteration.info().compiled == [] and training.iteration.state_dict()["compiled"]["training"] is None
    assert_close(training.run(), eager.run())
    assert training.iteration.info().compiled[0].startswith("training: compiled")


@pytest.mark.parametrize("state, text", [
    ({}, "this is no state of a FullIteration"),
    ({"compiled": True}, "this is no state of a FullIteration"),
    ({"compiled": {"test": True}}, "these stages"),
    ({"compiled": {"training": 1, "validation": None}}, "these stages"),
])  # fmt: skip
def test_other_states_are_refused(cpu, state, text):
    with pytest.raises(pianola.UsageError, match=text):
        Training(cpu, compile=True).iteration.load_state_dict(state)


def test_a_state_that_compiles_is_refused_where_nothing_does(cpu):
    plain = Training(cpu, warmup=1).iteration
    assert plain.state_dict() == {"compiled": {}}
    plain.load_state_dict({"compiled": {}})
    with pytest.raises(pianola.UsageError, match="make it with the same `compile`"):
        plain.load_state_dict({"compiled": {"training": True}})


def test_a_state_of_what_does_not_compile_chooses_nothing(cpu):
    training = Training(cpu, compile=True)
    training.iteration.load_state_dict(Training(cpu, warmup=1).iteration.state_dict())
    assert training.iteration.state_dict() == {"compiled": {"training": None, "validation": None}}


@pytest.mark.parametrize("call", [5, 7, 8, 9, 12, 13])  # plain, eager, compiled and in the race
@pytest.mark.parametrize("where", ["in the step", "behind it"])
def test_an_error_of_the_users_comes_out_and_no_iteration_runs_twice(where, call, cpu):
    """Also one of Pianola's, which a capture may throw as well."""
    hooks = []

    def hook(stage):
        hooks.append(stage)
        if where == "behind it" and len(hooks) == call:
            raise pianola.UsageError("no more batches")

    training, eager = Training(cpu, compile=True, after_iteration=hook), Training(cpu)
    errors = 0
    for i in range(1, 31):
        count = 3 if where == "in the step" and i == call else 2
        batch, same = training.batch(count=count), eager.batch(count=count)
        try:
            training.iteration(batch)
        except pianola.UsageError as error:
            assert "no more batches" in str(error)
            errors += 1
        with contextlib.suppress(pianola.UsageError):
            eager.train_step(same)
        assert_close(training.model.parameters(), eager.model.parameters())
    assert errors == 1 and len(hooks) == (29 if where == "in the step" else 30)
    assert training.iteration.info().compiled


@pytest.mark.parametrize("call", [5, 7, 8, 10, 14])
def test_a_hook_may_choose_anew(call, cpu):
    seen = []

    def hook(stage):
        seen.append(stage)
        if len(seen) == call:
            training.iteration.reset()

    training, eager = Training(cpu, compile=True, after_iteration=hook), Training(cpu)
    assert_close(training.run(), eager.run())
    assert len(seen) == CALLS


def test_one_call_at_a_time_is_allowed(cpu):
    inside, leave = threading.Event(), threading.Event()

    def hook(stage):
        if threading.current_thread() is other:
            inside.set()
            leave.wait(60)

    other = threading.Thread(target=lambda: training.iteration(batch))
    training = Training(cpu, compile=True, after_iteration=hook)
    batch = training.batch()
    training.run(30)
    other.start()
    assert inside.wait(60)
    for stage in ("training", "validation"):
        with pytest.raises(pianola.UsageError, match="one call at a time is allowed"):
            training.iteration(batch, stage=stage)
    leave.set()
    other.join()
    training.iteration(batch)


@pytest.mark.parametrize("calls", [7, 10, CALLS])
def test_lists_first_and_buckets_afterwards(calls, device):
    training, eager = Training(device, compile=True), Training(device)
    assert_close(training.run(calls), eager.run(calls))
    inputs = pianola.StaticInputs(device, buckets=pianola.Buckets([4, 8], dim=0))
    for size in (3, 8, 4, 7) * 3:
        inputs.load(training.batch(size))
        padded = [tuple(torch.nn.functional.pad(part, (0, 0, 0, inputs.bucket - size)) for part in batch) for batch in eager.batch(size)]
        assert_close([training.iteration(inputs)], [eager.train_step(padded)])
    assert_close(training.run(CALLS), eager.run(CALLS))
    assert training.iteration.info().compiled[0].startswith("training: compiled")


def test_it_is_freed_with_all_that_was_compiled(cpu):
    training = Training(cpu, compile=True)
    training.run()
    gone = weakref.ref(training.iteration)
    training.iteration = None
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("options, text", [({"compile": "yes"}, "compile must be True, False or 'auto'"), ({"closeness": -1}, "closeness must be")])
def test_options_out_of_range_are_refused(cpu, options, text):
    with pytest.raises(pianola.UsageError, match=text):
        Training(cpu, **options)
