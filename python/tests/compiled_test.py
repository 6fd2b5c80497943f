"""torch.compile inside, around and under Pianola: refused by name or eager, the compiler asked no more often than without."""

import os
import shutil

import pianola
import pytest
import torch
from torch._dynamo.utils import counters

from twins import MLP, assert_same, assert_same_state, batches, twins


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def compilations():
    return counters["stats"]["unique_graphs"]


def swish(x):
    return x * torch.sigmoid(x)


REASON = "runs code that torch.compile made"


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_graphed_step_with_compiled_code_stays_eager(backend, device):
    eager, graphed = twins(MLP(), device)
    compiled = torch.compile(graphed, backend=backend)
    optimizer, other = (torch.optim.SGD(model.parameters(), lr=0.1) for model in (graphed, eager))
    reasons = []

    @pianola.graphed(warmup=2, on_fallback=reasons.append)
    def step(x):
        optimizer.zero_grad()
        loss = compiled(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    for x in batches(6, (8, 16), device):
        other.zero_grad()
        loss = eager(x).square().mean()
        loss.backward()
        other.step()
        assert_same("loss", step(x).detach(), loss.detach())
        assert_same_state(graphed, eager)
    assert len(reasons) == 1 and REASON in reasons[0] and "PG1005" in reasons[0], reasons
    assert compilations() == 1


def test_a_graphed_compiled_module_stays_eager(device):
    eager, model = twins(MLP(), device)
    compiled = torch.compile(model, backend="aot_eager")
    reasons = []
    pianola.graphed(compiled, warmup=1, on_fallback=reasons.append)
    for x in batches(5, (8, 16), device):
        for one in (eager, compiled):
            one.zero_grad()
            one(x).sum().backward()
        assert_same_state(model, eager)
    assert len(reasons) == 1 and REASON in reasons[0], reasons
    assert compilations() == 1


def test_a_graphed_compiled_function_stays_eager(device):
    reasons = []
    graphed = pianola.graphed(torch.compile(swish, backend="eager"), warmup=1, on_fallback=reasons.append)
    for x in batches(5, (8, 16), device):
        assert_same("result", graphed(x), swish(x))
    assert len(reasons) == 1 and REASON in reasons[0], reasons
    assert compilations() == 1


def test_a_backward_pass_of_compiled_code_is_no_step_for_a_graph(device):
    weight = torch.ones(16, 16, device=device, requires_grad=True)
    compiled = torch.compile(lambda x: (x @ weight).sin().sum(), backend="aot_eager")
    reasons = []
    backward = pianola.graphed(lambda loss: loss[0].backward(), warmup=1, on_fallback=reasons.append)
    for x in batches(4, (8, 16), device):
        weight.grad = None
        backward([compiled(x)])
        expected = torch.autograd.grad((x @ weight).sin().sum(), weight)[0]
        assert_same("gradient", weight.grad, expected)
    assert reasons


def test_an_iteration_stays_eager_or_is_refused(device):
    compiled = torch.compile(swish, backend="eager")
    reasons = []
    iteration = pianola.FullIteration(
        lambda batch: compiled(batch[0]), warmup=2, eager_fallback=True, on_fallback=reasons.append
    )
    for x in batches(5, (8, 16), device):
        assert_same("result", iteration([x]), swish(x))
    assert len(reasons) == 1 and REASON in reasons[0], reasons
    refusing = pianola.FullIteration(lambda batch: compiled(batch[0]), warmup=1)
    x = batches(1, (8, 16), device)[0]
    refusing([x])
    with pytest.raises(pianola.Error, match=REASON):
        refusing([x])
    assert compilations() == 1


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
def test_explicit_captures_refuse_compiled_code(warm, device):
    compiled = torch.compile(swish, backend="eager")
    x = batches(1, (8, 16), device)[0]
    if warm:
        compiled(x)
    graph = pianola.Graph(device)
    with pytest.raises(pianola.CaptureError) as refused:
        graph.capture(lambda: compiled(x))
    error = refused.value
    assert REASON in error.what and error.rule == "PG1005" and "as it was before torch.compile" in error.fix
    assert "compiled_test.py:" in error.where
    with pytest.raises(pianola.CaptureError, match=REASON):
        pianola.make_graphed_callables(compiled, (x,))
    with pytest.raises(pianola.CaptureError, match=REASON):
        with pianola.graph(pianola.CUDAGraph(), device=device):
            compiled(x)
    assert_same("result", compiled(x), swish(x))
    assert compilations() == 1
    kept = []
    graph.capture(lambda: kept.append(swish(x)))
    graph.replay()
    assert_same("result", kept[-1], swish(x))


def test_a_cold_compilation_in_a_capture_ends_in_a_refusal():
    """On the tape, where compiling does not break the capture by itself."""
    x = torch.randn(8, 16)
    compiled = torch.compile(swish, backend="aot_eager")
    with pytest.raises(pianola.CaptureError, match=REASON):
        with pianola.graph(pianola.CUDAGraph(), device="cpu"):
            compiled(x)
    assert_same("result", compiled(x), swish(x))
    assert compilations() == 1


def test_a_compiled_function_around_a_graphed_one(device):
    graphed = pianola.graphed(swish, warmup=1, on_fallback=lambda reason: None)

    @torch.compile(backend="eager")
    def outer(x):
        return graphed(x + 1) * 2

    for x in batches(5, (8, 16), device):
        assert_same("result", outer(x), swish(x + 1) * 2)


@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="inductor needs a compiler")
def test_inductor_and_its_graphs_inside(device):
    compiled = torch.compile(swish, mode="reduce-overhead" if device.type == "cuda" else "default")
    reasons = []
    graphed = pianola.graphed(lambda x: compiled(x).clone(), warmup=1, on_fallback=reasons.append)
    for x in batches(3, (8, 16), device):
        assert torch.allclose(graphed(x), swish(x))
    assert len(reasons) == 1 and REASON in reasons[0], reasons
    assert compilations() == 1


def test_compiled_code_outside_of_the_captured_part_is_nobodys_business(device):
    compiled = torch.compile(swish, backend="eager")
    graphed = pianola.graphed(lambda x: x + 1, warmup=1)
    for x in batches(5, (8, 16), device):
        assert_same("result", graphed(compiled(x)), swish(x) + 1)
    assert sum(one.replays for one in graphed.info().signatures) >= 2
