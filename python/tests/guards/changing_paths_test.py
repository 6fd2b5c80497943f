"""Steps that do not do the same in each call, or not the same under capture."""

import functools
import itertools
import random

import pytest
import torch

import pianola
from twins import MLP, assert_same, assert_same_state, batches, twins


def graphed_with_reasons(step, **options):
    reasons = []
    return pianola.graphed(step, on_fallback=reasons.append, **options), reasons


def test_both_lines_are_named(device):
    """Nothing that Python shows decides it: the calls themselves are compared."""
    decide = functools.partial(next, itertools.cycle([True, False]))

    def step(x):
        if decide():
            return x.relu()
        return x.sigmoid()

    graphed, reasons = graphed_with_reasons(step)
    x = torch.randn(4, device=device)
    with torch.no_grad():
        for call in range(8):
            assert_same("result", graphed(x), x.sigmoid() if call % 2 else x.relu())
    assert len(reasons) == 1 and reasons[0].count("changing_paths_test.py:") == 2, reasons
    assert "aten::relu" in reasons[0] and "aten::sigmoid" in reasons[0] and "PG501" in reasons[0]


# --- A capture that takes another path ---


def library(x):
    """As transformers' masks: it asks whether it is captured, and does something else."""
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing() or pianola.is_current_stream_capturing():
        return x * 2.0
    return x + x


def test_a_library_that_asks_whether_it_is_captured_is_not_replayed(device):
    eager, other = twins(MLP(), device)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (eager, other)]

    def step_of(model, optimizer):
        def step(x):
            optimizer.zero_grad()
            loss = library(model(x)).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    graphed, reasons = graphed_with_reasons(step_of(other, optimizers[1]))
    step = step_of(eager, optimizers[0])
    for x in batches(8, (8, 16), device):
        assert_same("loss", graphed(x), step(x))
        assert_same_state(other, eager)
    assert len(reasons) == 1 and reasons[0].count("changing_paths_test.py") == 2
    assert "under capture" in reasons[0] and "accept_capture_path" in reasons[0] and "run again" in reasons[0]


def test_what_it_does_under_capture_can_be_accepted(device):
    graphed, reasons = graphed_with_reasons(library, accept_capture_path=True)
    with torch.no_grad():
        for x in batches(8, (8, 16), device):
            assert_same("result", graphed(x), x * 2)
    assert not reasons and graphed.info().signatures[0].replays == 5


def test_full_iterations_refuse_it_too(device):
    model = MLP().to(device)

    def step(microbatches):
        return [library(model(x)).detach().sum() for x in microbatches]

    iteration = pianola.FullIteration(step, warmup=2)
    data = batches(2, (4, 16), device)
    for _ in range(2):
        iteration(data)
    with pytest.raises(pianola.UsageError, match="under capture"):
        iteration(data)
    accepted = pianola.FullIteration(step, warmup=2, accept_capture_path=True)
    for _ in range(5):
        results = accepted(data)
    for x, result in zip(data, results):
        assert_same("result", result, (model(x) * 2).detach().sum())
    fallen = pianola.FullIteration(step, warmup=2, eager_fallback=True, on_fallback=(reasons := []).append)
    for _ in range(5):
        results = fallen(data)
    for x, result in zip(data, results):
        assert_same("result", result, (model(x) + model(x)).detach().sum())
    assert len(reasons) == 1 and "run again" in reasons[0]


def test_a_graph_refuses_a_recording_that_takes_another_path(device):
    x, y = torch.randn(4, device=device), torch.zeros(4, device=device)

    def step_of(runs):
        def step():
            if next(runs) < 3:
                y.copy_(x * 2)
            else:
                y.copy_(x + x)

        return step

    graph = pianola.Graph(device)
    with pytest.raises(pianola.CaptureError, match="under capture") as refused:
        graph.capture(step_of(itertools.count()))
    assert str(refused.value).count("changing_paths_test.py:") == 2 and "accept_capture_path" in str(refused.value)
    assert not y.any() and not graph.captured
    graph.capture(step_of(itertools.count()), accept_capture_path=True)
    graph.replay()
    assert_same("result", y, x + x)
    for warmup in (0, 1):
        other = pianola.Graph(device)
        other.capture(step_of(itertools.count(3 - warmup)), warmup=warmup)


def test_graphed_callables_refuse_it_and_torchs_do_not(device):
    x = torch.randn(4, device=device)
    with pytest.raises(pianola.CaptureError, match="under capture") as refused:
        pianola.make_graphed_callables(library, (x,))
    assert str(refused.value).count("changing_paths_test.py:") == 2 and "accept_capture_path" in str(refused.value)
    with pianola.compat():
        made = torch.cuda.make_graphed_callables(library, (x,))
    for callable_ in (made, pianola.make_graphed_callables(library, (x,), accept_capture_path=True)):
        assert_same("result", callable_(x), x * 2)


@pytest.mark.parametrize("change", ["counts", "keeps", "reads", "draws"])
def test_full_iterations_refuse_what_their_iterations_show(device, change):
    model = MLP(layers=1).to(device)
    kept = []
    state = {"n": 0}
    count = functools.partial(next, itertools.count())  # of runs; nothing that Python shows

    def step(microbatches):
        count()
        loss = sum(model(x).square().mean() for x in microbatches)
        if change == "counts":
            state["n"] += 1
        elif change == "keeps":
            kept.append(loss.detach())
        elif change == "reads":
            loss = loss * loss.item()
        else:
            loss = loss * random.random()
        return loss.detach()

    texts = {"counts": "state", "keeps": "kept", "reads": "aten::item", "draws": "PG604"}
    iteration = pianola.FullIteration(step, warmup=2)
    data = batches(2, (4, 16), device)
    for _ in range(2):
        iteration(data)
    with pytest.raises(pianola.UsageError, match="the iteration cannot be captured") as raised:
        for _ in range(2):
            iteration(data)
    assert texts[change] in str(raised.value)
    before = count()
    fallen = pianola.FullIteration(step, warmup=2, eager_fallback=True, on_fallback=(reasons := []).append)
    for _ in range(6):
        fallen(data)
    assert count() == before + 7 and len(reasons) == 1


# --- Backward passes of the user's own ---


class Scaled(torch.autograd.Function):
    scale = [1.0]

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        return gradient * Scaled.factor()

    @staticmethod
    def factor():
        return next(Scaled.factors)


def test_numbers_of_a_custom_backward_are_compared(device):
    """It runs after the call: the next one, or the capture, shows that it is given other numbers."""
    eager, other = twins(MLP(layers=1), device)

    class Net(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return Scaled.apply(self.inner(x))

    graphed = Net(other)
    reasons = []
    pianola.graphed(graphed, on_fallback=reasons.append)
    reference = Net(eager)
    for call, x in enumerate(batches(10, (4, 16), device)):
        for model in (reference, graphed):
            Scaled.factors = iter([1.0 + call] * 100)
            model.zero_grad()
            model(x).sum().backward()
        assert_same_state(other, eager)
    assert len(reasons) == 1


# --- What never comes back ---


def test_arguments_that_never_come_back_are_told_once(device):
    graphed, reasons = graphed_with_reasons(lambda x, step: x * len("x" * step))
    x = torch.ones(3, device=device)
    for step in range(30):
        assert_same("result", graphed(x, step=step), x * step)
    assert len(reasons) == 1 and "kwargs['step'] (aten::mul" in reasons[0] and "changes at every call" in reasons[0]


def test_shapes_that_never_come_back_are_told_once(device):
    graphed, reasons = graphed_with_reasons(lambda x: x * 2)
    for rows in range(1, 30):
        graphed(torch.ones(rows, device=device))
    assert len(reasons) == 1 and "pad them to a few sizes" in reasons[0]


def test_a_rate_that_changes_at_every_call_is_a_number_of_the_graph(device):
    eager, other = twins(MLP(layers=1), device)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (eager, other)]
    schedules = [torch.optim.lr_scheduler.ExponentialLR(o, 0.99) for o in optimizers]

    def step_of(model, optimizer):
        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    graphed, reasons = graphed_with_reasons(step_of(other, optimizers[1]))
    step = step_of(eager, optimizers[0])
    for x in batches(30, (4, 16), device):
        assert_same("loss", graphed(x), step(x))
        for schedule in schedules:
            schedule.step()
        assert_same_state(other, eager)
    assert not reasons and sum(one.replays for one in graphed.info().signatures) >= 24


class Decaying(torch.optim.Optimizer):
    """An optimizer of the user's, whose rate no Python value shows."""

    def __init__(self, parameters, count):
        super().__init__(parameters, {"lr": 0.1})
        self.count = count

    @torch.no_grad()
    def step(self, closure=None):
        loss = None if closure is None else torch.enable_grad()(closure)()
        number = self.count()
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad, alpha=-group["lr"] / number)
        return loss


def counter():
    return functools.partial(next, itertools.count(1))


def test_an_optimizer_of_nobodys_that_changes_a_number_is_followed(device):
    eager, other = twins(MLP(layers=1), device)
    optimizers = [Decaying(model.parameters(), counter()) for model in (eager, other)]

    def step_of(model, optimizer):
        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    graphed, reasons = graphed_with_reasons(step_of(other, optimizers[1]))
    step = step_of(eager, optimizers[0])
    for x in batches(6, (4, 16), device):
        assert_same("loss", graphed(x), step(x))
    assert_same_state(other, eager)
    assert not reasons, reasons


def test_a_closure_that_changes_a_number_is_not_its_optimizer(device):
    model = MLP(layers=1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    count = counter()

    def step(x):
        def closure():
            optimizer.zero_grad()
            loss = (model(x) * count()).square().mean()
            loss.backward()
            return loss

        return optimizer.step(closure).detach()

    graphed, reasons = graphed_with_reasons(step)
    for x in batches(6, (4, 16), device):
        graphed(x)
    assert len(reasons) == 1 and "PG301" in reasons[0], reasons
    assert "by the optimizer" not in reasons[0] and "closure at changing_paths_test.py:" in reasons[0], reasons


@pytest.mark.parametrize("kind", ["graphed", "full iteration"])
def test_who_reads_a_tensor_made_of_memory_of_the_host_is_named(kind):
    numpy = pytest.importorskip("numpy")
    weights = numpy.ones(16, dtype=numpy.float32)

    def step(x):
        return x.relu() * torch.from_numpy(weights)

    wanted = ("PG401", "where: operation ", " of the step, aten::mul.Tensor, step at changing_paths_test.py:")
    x = torch.randn(4, 16)  # on a GPU NumPy's memory is copied there, which is refused as that
    with torch.no_grad():
        if kind == "graphed":
            graphed, reasons = graphed_with_reasons(step)
            for _ in range(6):
                assert_same("result", graphed(x), x.relu())
            assert len(reasons) == 1 and all(one in reasons[0] for one in wanted), reasons
        else:
            iteration = pianola.FullIteration(step)
            with pytest.raises(pianola.UsageError) as error:
                for _ in range(6):
                    iteration(x)
            assert all(one in str(error.value) for one in wanted), error.value


def test_more_microbatches_in_flight_than_graphs_are_told_once(device):
    model = MLP(layers=1).to(device)
    reasons = []
    pianola.graphed(model, on_fallback=reasons.append)
    for _ in range(4):
        losses = [model(x).sum() for x in batches(6, (4, 16), device)]
        for loss in losses:
            loss.backward()
    assert len(reasons) == 1 and "max_in_flight" in reasons[0]
