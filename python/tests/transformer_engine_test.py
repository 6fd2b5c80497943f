"""pianola.compat() behind Transformer Engine's import path, on code as its users write it.

transformer_engine itself is not there: a stand-in has its modules, and the function's name and arguments retyped from its
documentation. What is shown is that such code reaches Pianola and trains as eager does, not that its layers can be captured.
"""

import importlib
import sys
import types

import pytest
import torch

import pianola
from twins import assert_same, assert_same_state, batches


class Layer(torch.nn.Module):
    """In place of transformer_engine.pytorch.TransformerLayer."""

    def __init__(self, width=16, delay_wgrad_compute=False):
        super().__init__()
        self.delay_wgrad_compute = delay_wgrad_compute
        self.norm = torch.nn.LayerNorm(width)
        self.up, self.down = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


@pytest.fixture
def te(monkeypatch):
    """`import transformer_engine.pytorch as te`"""

    def make_graphed_callables(modules, sample_args, num_warmup_iters=3, allow_unused_input=False, **options):
        raise AssertionError("Transformer Engine's own was called")

    package, pytorch, graph = (
        types.ModuleType("transformer_engine" + rest) for rest in ("", ".pytorch", ".pytorch.graph")
    )
    package.pytorch, pytorch.graph = pytorch, graph
    package.__path__ = pytorch.__path__ = []
    pytorch.make_graphed_callables = graph.make_graphed_callables = make_graphed_callables
    pytorch.TransformerLayer = Layer
    for module in (package, pytorch, graph):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return pytorch


def chunks(te, device, **options):
    torch.manual_seed(3)
    return [te.TransformerLayer(**options).to(device) for _ in range(2)]


def sample(device):
    return torch.randn(4, 16, device=device, requires_grad=True)


def test_its_name_is_replaced_where_it_is_loaded_and_put_back(te):
    theirs = te.make_graphed_callables
    with pianola.compat():
        from transformer_engine.pytorch.graph import make_graphed_callables

        assert te.make_graphed_callables is make_graphed_callables is not theirs
    assert te.make_graphed_callables is theirs
    assert importlib.import_module("transformer_engine.pytorch.graph").make_graphed_callables is theirs


@pytest.mark.parametrize("delay", [False, True], ids=["", "delayed weights"])
def test_layers_train_as_eager(te, device, delay):
    eager, layers = chunks(te, device), chunks(te, device, delay_wgrad_compute=delay)
    with pianola.compat():
        graphed = te.make_graphed_callables(
            tuple(layers), ((sample(device),), (sample(device),)), num_warmup_iters=2, fp8_enabled=False, fp8_weight_caching=False
        )
    optimizers = [torch.optim.AdamW([p for layer in these for p in layer.parameters()], lr=1e-2) for these in (eager, layers)]
    for x in batches(5, (4, 16), device):
        for these, optimizer in zip((eager, graphed), optimizers):
            optimizer.zero_grad()
            y = x.clone().requires_grad_()
            for layer in these:
                y = layer(y)
            y.square().mean().backward()
            if these is graphed and delay:
                assert layers[0].up.weight.grad is None
                assert all([layer.backward_dw() for layer in reversed(these)])
            optimizer.step()
    for one, other in zip(eager, layers):
        assert_same_state(one, other)


def test_a_pipeline_with_delayed_weights_trains_as_eager(te, device):
    order = [1, 2, 1, 2, -2, -2.5, -1, -1.5, -2, -2.5, -1, -1.5]
    eager, layers = chunks(te, device), chunks(te, device)
    with pianola.compat():
        functions = te.make_graphed_callables(
            tuple(layers), tuple((sample(device),) for _ in range(4)), _order=order, _num_layers_per_chunk=[1, 1],
            _reuse_graph_input_output_buffers=True, allow_unused_input=True,
        )  # fmt: skip
    for step in range(3):
        inputs = batches(2, (4, 16), device, seed=step)
        for module in (*eager, *layers):
            module.zero_grad()
        mine = run_order(order, lambda c, m: functions[2 * (c - 1) + m], inputs, weights=True)
        theirs = run_order(order, lambda c, m: eager[c - 1], inputs, weights=False)
        for one, other in zip(mine, theirs):
            assert_same("gradient of an input", one, other)
        for one, other in zip(eager, layers):
            assert_same_state(one, other)


def run_order(order, function, inputs, weights):
    """Each chunk gets the batch itself: other ranks lie between the chunks."""
    begun, ended, later = ({1: 0, 2: 0} for _ in range(3))
    flying, made = {}, []
    for entry in order:
        chunk = abs(int(entry))
        if entry > 0:
            x = inputs[begun[chunk]].clone().requires_grad_()
            flying[chunk, begun[chunk]] = x, function(chunk, begun[chunk])(x)
            begun[chunk] += 1
        elif entry == int(entry):
            x, y = flying.pop((chunk, ended[chunk]))
            y.square().sum().backward()
            made.append(x.grad)
            ended[chunk] += 1
        else:
            if weights:
                assert function(chunk, later[chunk]).backward_dw()
            later[chunk] += 1
    return made


def test_a_layer_that_keeps_its_gradients_for_later_itself_is_refused(te, device):
    class Stores(Layer):
        def backward_dw(self):
            pass

    with pianola.compat(), pytest.raises(pianola.UnsupportedError, match="0 \\(Stores\\) delays its weights' gradients by itself"):
        te.make_graphed_callables(torch.nn.Sequential(Stores(delay_wgrad_compute=True)), (sample(device),))


def test_an_old_name_is_told(te, device):
    with pianola.compat(), pytest.warns(DeprecationWarning, match="`fp8_enabled` kwarg in favor of `enabled`"):
        te.make_graphed_callables(chunks(te, device)[0], (sample(device),), fp8_enabled=False)


def test_a_function_is_refused_as_it_does(te, device):
    with pianola.compat(), pytest.raises(TypeError, match="Graphing for .* is not supported"):
        te.make_graphed_callables(torch.relu, (sample(device),))


def test_autocasts_cache_is_refused_as_it_does(te, device):
    if device.type == "cpu":
        pytest.skip("it asks for the GPU's autocast")
    with pianola.compat(), torch.autocast("cuda", torch.bfloat16), pytest.raises(pianola.UsageError, match="autocast caching"):
        te.make_graphed_callables(chunks(te, device)[0], (sample(device),))
