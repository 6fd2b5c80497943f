"""make_graphed_callables(compile=...): what it computes, what it chooses, and that it leaves no trace of what it tried."""

import copy
import gc
import threading
import weakref

import pianola
import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.attention.flex_attention import flex_attention

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


class Positions(Net):
    """A buffer that nobody can write, keywords, and results by name."""

    def __init__(self):
        super().__init__()
        self.register_buffer("positions", torch.arange(4.0).expand(16, 4))

    def forward(self, x, scale=1.0):
        return {"sum": super().forward(x) * scale + self.positions, "input": x}


def test_expanded_buffers_keywords_and_results_by_name(device):
    graphed, other = net(device, Positions), net(device, Positions)
    (x,) = batches(1, (16, 8), device)
    pianola.make_graphed_callables(graphed, (x,), sample_kwargs={"scale": 2.0}, compile=True)
    assert graphed.forward.compiled.startswith("compiled: Positions, in "), graphed.forward.compiled
    compiled = torch.compile(other, dynamic=False, fullgraph=True)
    for x in batches(3, (16, 8), device):
        one, two = graphed(x, scale=2.0), compiled(x, scale=2.0)
        assert_same("sum", one["sum"], two["sum"])
        assert_same("input", one["input"], x)
    assert_same_state(graphed, other)


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


class WritesAParameter(Net):
    def __init__(self):
        super().__init__()
        self.code = torch.nn.Parameter(torch.zeros(4), requires_grad=False)

    def forward(self, x):
        with torch.no_grad():
            self.code.mul_(0.9).add_(x.mean(0)[:4])
        return super().forward(x) + self.code


class WritesAnAttribute(Net):
    def __init__(self):
        super().__init__()
        self.steps = torch.zeros(4)

    def _apply(self, function, recurse=True):
        self.steps = function(self.steps)
        return super()._apply(function, recurse)

    def forward(self, x):
        self.steps.add_(1)
        return super().forward(x) + self.steps


class WritesATensorOfOthers(Net):
    outside = None  # of the class

    def forward(self, x):
        self.outside.add_(1)
        return super().forward(x)


@pytest.mark.parametrize("kind", [WritesAParameter, WritesAnAttribute, WritesATensorOfOthers])
def test_what_writes_more_than_buffers_stays_plain_and_is_not_written(kind, device):
    """Trials could not put it back."""
    WritesATensorOfOthers.outside = torch.zeros(4, device=device)
    graphed, other = net(device, kind), net(device, kind)
    (x,) = batches(1, (16, 8), device)
    pianola.make_graphed_callables(graphed, (x,), compile=True)
    assert "not compiled" in graphed.forward.compiled and "writes" in graphed.forward.compiled, graphed.forward.compiled
    assert WritesATensorOfOthers.outside.sum() == 0
    for x in batches(3, (16, 8), device):
        assert_same("result", graphed(x), other(x))
    assert_same_state(graphed, other)


def test_what_a_comparison_makes_is_let_go_as_it_goes(device):
    """A look at its writes does not hold what a forward and backward pass have made."""
    from pianola._compared_modules import _Writes

    made = []
    with _Writes(net(device)):
        first = torch.ones(8, device=device)
        made.append(StorageWeakRef(first.untyped_storage()))
        del first
        second = torch.ones(8, device=device)
        second.add_(1)
    assert made[0].expired()


def test_a_look_at_writes_leaves_code_alone_that_a_module_compiles_itself(device):
    """As flex_attention does, whose operator takes functions."""
    from pianola._compared_modules import _Writes

    class Attention(torch.nn.Module):
        def forward(self, q, k, v):
            return flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + (i - j))

    sample, attention = [torch.randn(1, 2, 128, 16, device=device) for _ in range(3)], Attention()
    with torch.no_grad():
        with _Writes(attention) as writes:
            seen = attention(*sample)
        assert not writes.more
        assert_same("result", attention(*sample), seen)


def test_hooks_of_all_modules_run_once(device):
    graphed, other = net(device), net(device)
    (x,) = batches(1, (16, 8), device)
    hook = torch.nn.modules.module.register_module_forward_hook(lambda module, args, result: 2 * result if isinstance(module, Net) else None)
    try:
        pianola.make_graphed_callables(graphed, (x,), compile=True)
        assert graphed.forward.compiled.startswith("compiled"), graphed.forward.compiled
        forward = torch.compile(other.forward, dynamic=False)
        assert_same("result", graphed(x), 2 * forward(x))
    finally:
        hook.remove()


def test_threads_leave_torchs_settings_as_they_were(device):
    before = torch._functorch.config.donated_buffer, set(torch._dynamo.config.ignore_logging_functions)
    made = [net(device) for _ in range(3)]
    (x,) = batches(1, (16, 8), device)
    threads = [threading.Thread(target=pianola.make_graphed_callables, args=(one, (x,)), kwargs={"compile": True}) for one in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (torch._functorch.config.donated_buffer, set(iter(torch._dynamo.config.ignore_logging_functions))) == before


def test_a_backward_pass_that_is_to_come_still_does(device):
    graphed = net(device).eval()  # which saves its statistics
    (x,) = batches(1, (16, 8), device)
    loss = graphed(x).sum()
    pianola.make_graphed_callables(graphed, (x,), compile=True)
    assert graphed.forward.compiled.startswith("compiled"), graphed.forward.compiled
    loss.backward()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_inference_takes_compiled_code(mode, device):
    graphed, other = net(device).eval(), net(device).eval()
    (x,) = batches(1, (16, 8), device)
    with mode():
        pianola.make_graphed_callables(graphed, (x,), compile=True)
        assert graphed.forward.compiled.startswith("compiled"), graphed.forward.compiled
        compiled = torch.compile(other, dynamic=False, fullgraph=True)
        for x in batches(3, (16, 8), device):
            assert_same("result", graphed(x), compiled(x))


def test_samples_keep_their_strides(device):
    graphed = net(device)
    (wide,) = batches(1, (16, 16), device)
    pianola.make_graphed_callables(graphed, (wide[:, :8],), compile=True)
    assert graphed.forward.compiled.startswith("compiled"), graphed.forward.compiled


def test_nothing_is_claimed_where_the_compiler_is_told_to_rest(device):
    graphed = net(device)
    (x,) = batches(1, (16, 8), device)
    with torch.compiler.set_stance("force_eager"):
        pianola.make_graphed_callables(graphed, (x,), compile=True)
    assert graphed.forward.compiled == "not compiled: torch.compiler.set_stance says 'force_eager'"


def test_layers_of_a_pipeline_say_what_was_chosen(device):
    layer = torch.nn.Linear(8, 8).to(device)
    samples = tuple((torch.zeros(2, 8, device=device, requires_grad=True),) for _ in range(2))
    functions = pianola.make_graphed_callables((layer,), samples, _order=[1, 1, -1, -1], compile=True)
    assert [one.compiled.startswith("compiled: Linear") for one in functions] == [True, True]


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
    from pianola._ignored_logs import logs_ignored

    with logs_ignored(), logs_ignored():
        assert torch._dynamo.utils._get_dynamo_config_for_logging()
