"""Graph.update: another capture of the same step, which keeps the executable."""

import pytest
import torch

import pianola
from twins import MLP, assert_same, assert_same_state, batches, twins


def stepper(model, x, y, rate):
    def step():
        loss = (model(x) - y).square().mean()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients):
                parameter.sub_(gradient, alpha=rate)

    return step


def test_each_update_trains_another_model_as_eager_does(device):
    graph, executable = pianola.Graph(device), None
    for round, rate in enumerate((0.1, 0.025, 0.3)):
        torch.manual_seed(round)
        eager, ours = twins(MLP(), device)
        x, y = torch.randn(8, 16, device=device), torch.randn(8, 16, device=device)
        take = graph.update if graph.captured else graph.capture
        take(stepper(ours, x, y, rate), inputs=[x, y])
        assert_same_state(ours, eager)
        assert graph.raw_executable() == (executable or graph.raw_executable())
        executable = graph.raw_executable()
        for one, other in zip(batches(3, (8, 16), device, seed=1), batches(3, (8, 16), device, seed=9)):
            graph.replay(one, other)
            stepper(eager, one, other, rate)()
            assert_same_state(ours, eager)
    assert (executable != 0) == (device.type == "cuda")


def test_what_the_step_raises_comes_out_and_the_earlier_capture_replays(device):
    x = torch.randn(4, device=device)
    total, graph = torch.zeros(4, device=device), pianola.Graph(device)
    graph.capture(lambda: total.add_(x))

    def fails():
        total.add_(x)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        graph.update(fails)
    with pytest.raises(pianola.CaptureError, match="aten::sub_.Tensor stands where aten::add_.Tensor was captured"):
        graph.update(lambda: total.sub_(x))
    with pytest.raises(pianola.CaptureError, match="reads|returns"):
        graph.update(lambda: total.add_(x.sum().item()))
    graph.replay()
    graph.replay()
    assert_same("total", total, x + x)


def test_a_capture_with_a_part_that_stays_eager_is_refused(device):
    x, y, graph = torch.randn(4, device=device), torch.zeros(4, device=device), pianola.Graph(device)
    part = pianola.eager(lambda one: one * one.sum().item())

    def step():
        with torch.no_grad():
            y.copy_(part(x) + 1)

    graph.capture(step, warmup=2)
    with pytest.raises(pianola.UsageError, match="a graph with parts that stay eager, whose replays launch it in pieces"):
        graph.update(step, warmup=2)
    graph.replay()
    assert_same("y", y, x * x.sum().item() + 1)


def test_a_graph_without_a_capture_is_refused(device):
    with pytest.raises(pianola.UsageError, match=r"update\(\) was called on a graph that holds no capture"):
        pianola.Graph(device).update(lambda: None)
