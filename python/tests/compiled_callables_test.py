"""make_graphed_callables(compile=...): what it computes, what it chooses, and that it leaves no trace of what it tried."""

import copy
import gc
import weakref

import pianola
import pytest
import torch

from compiling import NEEDS_A_COMPILER, fresh_compiler  # noqa: F401
from twins import assert_same, assert_same_state, batches

pytestmark = NEEDS_A_COMPILER


class Net(torch.nn.Module):
    """With statistics that the forward writes."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 4))
        self.dropout = torch.nn.Dropout(dropout)

    def forward(self, x):
        return self.dropout(self.layers(x))


class Broken(Net):
    """A part of which Inductor has to leave to Python."""

    def forward(self, x):
        torch._dynamo.graph_break()
        return super().forward(x)


def net(device, kind=Net, **options):
    torch.manual_seed(3)
    return kind(**options).to(device)


def train_alike(graphed, other, device, model=None, calls=4):
    """@param model  What `other` calls, where it is no module."""
    for x in batches(calls, (16, 8), device):
        for one in (graphed, other):
            one(x).square().mean().backward()
        assert_same_state(graphed, model or other)


def test_a_module_is_captured_as_inductor_compiles_it(device):
    """The bits of the compiled module, and the statistics of as many calls."""
    graphed, other = net(device), net(device)
    (x,) = batches(1, (16, 8), device)
    before = copy.deepcopy(other.state_dict())
    random = torch.get_rng_state()
    pianola.make_graphed_callables(graphed, (x,), compile=True)
    assert all(torch.equal(value, before[name]) for name, value in graphed.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert graphed.forward.compiled.startswith("compiled: Net, in "), graphed.forward.compiled
    assert "of the largest value away from eager" in graphed.forward.compiled or "bit-equal" in graphed.forward.compiled
    train_alike(graphed, torch.compile(other, dynamic=False, fullgraph=True), device, other)


@pytest.mark.parametrize("takes", [True, False])
def test_auto_races_copies_and_keeps_the_faster(takes, device, monkeypatch):
    races = []

    def judge(is_wanted, name, plain, compiled, seconds, comparison):
        races.append((is_wanted, plain.count(), compiled.count()))
        return takes, "said"

    monkeypatch.setattr("pianola._compiled_callables.judge", judge)
    graphed, other = net(device), net(device)
    (x,) = batches(1, (16, 8), device)
    before = copy.deepcopy(other.state_dict())
    pianola.make_graphed_callables(graphed, (x,), compile="auto")
    assert races == [(False, 7, 7)] and graphed.forward.compiled == "said"
    assert all(torch.equal(value, before[name]) for name, value in graphed.state_dict().items())
    assert all(parameter.grad is None for parameter in graphed.parameters())
    train_alike(graphed, torch.compile(other, dynamic=False, fullgraph=True) if takes else other, device, other)


def test_the_race_takes_no_numbers_from_any_generator(device):
    graphed = net(device, dropout=0.5)
    (x,) = batches(1, (16, 8), device)
    states = torch.get_rng_state(), torch.cuda.get_rng_state() if device == "cuda" else None
    pianola.make_graphed_callables(graphed, (x,), compile="auto")
    assert torch.equal(torch.get_rng_state(), states[0])
    assert device != "cuda" or torch.equal(torch.cuda.get_rng_state(), states[1])
    assert "not compared with eager, as it draws random numbers" in graphed.forward.compiled, graphed.forward.compiled


@pytest.mark.parametrize(
    ("kind", "options", "why"),
    [
        (Broken, {}, "not compiled: "),
        (Net, {"closeness": 0}, "of the largest value away from eager, and the closeness is 0"),
    ],
)
def test_what_cannot_be_compiled_or_is_too_far_away_stays_plain(kind, options, why, device):
    graphed, other = net(device, kind), net(device, kind)
    (x,) = batches(1, (16, 8), device)
    pianola.make_graphed_callables(graphed, (x,), compile=True, **options)
    assert graphed.forward.compiled.startswith("not compiled") and why in graphed.forward.compiled, graphed.forward.compiled
    train_alike(graphed, other, device)


def test_a_capture_that_fails_as_compiled_is_made_plainly_and_leaves_no_trace(device, monkeypatch):
    """Code that was not compiled ahead compiles in the warm-up, whose writes nobody sees."""
    monkeypatch.setattr("pianola._compiled_callables.CompiledCallables._compiled_ahead", lambda self, called: called.module.cold)
    graphed, other = net(device), net(device)
    graphed.cold = torch.compile(lambda x: Net.forward(graphed, x))
    (x,) = batches(1, (16, 8), device)
    pianola.make_graphed_callables(graphed, (x,), compile=True)
    assert graphed.forward.compiled.startswith("not compiled, as it cannot be captured so: "), graphed.forward.compiled
    del graphed.cold
    train_alike(graphed, other, device)


def test_several_callables_are_compiled_each_by_itself(device):
    first, head, other, other_head = net(device), torch.nn.Linear(4, 2).to(device), net(device), torch.nn.Linear(4, 2).to(device)
    other_head.load_state_dict(head.state_dict())
    (x,) = batches(1, (16, 8), device)
    samples = ((x,), (torch.zeros(16, 4, device=device, requires_grad=True),), (torch.zeros(16, 2, device=device, requires_grad=True),))
    pianola_first, pianola_head, tanh = pianola.make_graphed_callables((first, head, torch.tanh), samples, compile=True)
    assert pianola_first.forward.compiled.startswith("compiled: Net, in ")
    assert pianola_head.forward.compiled.startswith("compiled: Linear, in ")
    assert tanh.compiled == "not compiled: it is a function, and modules are"
    compiled, compiled_head = (torch.compile(one, dynamic=False, fullgraph=True) for one in (other, other_head))
    for x in batches(3, (16, 8), device):
        results = tanh(head(first(x))), compiled_head(compiled(x)).tanh()
        assert_same("result", *results)
        for result in results:
            result.sum().backward()
        assert_same_state(first, other)
        assert_same_state(head, other_head)


def test_calls_that_differ_run_the_original(device):
    graphed, other = net(device), net(device)
    (x,) = batches(1, (16, 8), device)
    pianola.make_graphed_callables(graphed, (x,), compile=True, on_mismatch="eager")
    (small,) = batches(1, (5, 8), device)
    assert_same("result", graphed(small), other(small))
    assert_same("evaluation", graphed.eval()(small), other.eval()(small))


def test_a_compiled_module_is_let_go(device):
    graphed = net(device)
    (x,) = batches(1, (16, 8), device)
    pianola.make_graphed_callables(graphed, (x,), compile=True)
    graphed(x).sum().backward()
    gone = weakref.ref(graphed)
    del graphed
    torch._dynamo.reset()
    gc.collect()
    assert gone() is None


def test_without_the_option_nothing_is_said(device):
    graphed = net(device)
    (x,) = batches(1, (16, 8), device)
    pianola.make_graphed_callables(graphed, (x,))
    assert graphed.forward.compiled == ""


def test_options_are_checked_before_anything_is_made(device):
    graphed = net(device)
    (x,) = batches(1, (16, 8), device)
    for options, message in (({"compile": "fast"}, "compile must be True, False or 'auto', got 'fast'"), ({"closeness": -1}, "closeness must be None or a number of 0 or more")):
        with pytest.raises(pianola.UsageError, match=message):
            pianola.make_graphed_callables(graphed, (x,), **options)


def test_logs_that_are_ignored_twice_can_be_told_to_torchs_statistics():
    from pianola._compiled_modules import logs_ignored

    with logs_ignored(), logs_ignored():
        assert torch._dynamo.utils._get_dynamo_config_for_logging()
