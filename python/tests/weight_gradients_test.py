"""delay_weight_gradients: a backward in two parts, as Transformer Engine's backward_dw(), on models without it."""

import contextlib
import copy

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import pianola
from layer_programs import Gpt, assert_equal, loss_of
from twins import MLP, ConvNet, assert_same, assert_same_state, batches, twins


class Checkpointed(torch.nn.Module):
    def __init__(self, inner, reentrant):
        super().__init__()
        self.inner, self.reentrant = inner, reentrant

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=self.reentrant) + x


def encoder_layer():
    return torch.nn.TransformerEncoderLayer(16, 4, dim_feedforward=32, dropout=0.1, batch_first=True)


MODELS = {
    "an encoder layer": (encoder_layer, (2, 8, 16)),
    "an encoder layer of another order": (lambda: torch.nn.TransformerEncoderLayer(16, 2, 32, norm_first=True, batch_first=True), (2, 8, 16)),
    "a convolutional network": (ConvNet, (4, 3, 8, 8)),
    "linear layers": (lambda: torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)), (8, 16)),
    "weight norm": (lambda: torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(16, 16)), (8, 16)),
    "recomputed": (lambda: Checkpointed(MLP(), reentrant=False), (8, 16)),
    "recomputed, the old way": (lambda: Checkpointed(MLP(), reentrant=True), (8, 16)),
}


def train(model, call, weights, shape, device, region):
    made = []
    for step in range(4):
        model.zero_grad(set_to_none=step != 2)
        for x in batches(2, shape, device, seed=step):
            x.requires_grad_()
            torch.manual_seed(step)
            with region():
                loss = call(x).float().square().sum()
            loss.backward()
            weights()
            made += [loss.detach().clone(), x.grad]
    return made


@pytest.mark.parametrize("grad", ["accumulate", "clone"])
@pytest.mark.parametrize("bfloat16", [False, True], ids=["float", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_two_parts_make_what_one_backward_makes(device, name, bfloat16, grad):
    make, shape = MODELS[name]
    eager, model = twins(make(), device)

    def region():
        if not bfloat16:
            return contextlib.nullcontext()
        return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)

    with region():
        sample = torch.randn(shape, device=device, requires_grad=True)
        graphed = pianola.make_graphed_callables(model, (sample,), grad=grad, delay_weight_gradients=True)
    expected = train(eager, eager, lambda: None, shape, device, region)
    actual = train(model, graphed, graphed.backward_dw, shape, device, region)
    for number, (one, other) in enumerate(zip(actual, expected)):
        assert_same(f"result {number}", one, other)
    assert_same_state(model, eager)
    delayed = graphed.forward.info().delayed
    if name not in ("weight norm", "recomputed", "recomputed, the old way"):
        assert delayed >= 2, name


def test_an_optimizer_trains_the_same(device):
    eager, model = twins(encoder_layer(), device)
    graphed = pianola.make_graphed_callables(
        model, (torch.randn(2, 8, 16, device=device, requires_grad=True),), delay_weight_gradients=True
    )
    optimizers = [torch.optim.AdamW(one.parameters(), lr=1e-2) for one in (eager, model)]
    for x in batches(5, (2, 8, 16), device):
        for call, optimizer in zip((eager, graphed), optimizers):
            optimizer.zero_grad()
            torch.manual_seed(1)
            call(x.clone().requires_grad_()).square().mean().backward()
            if call is graphed:
                assert call.backward_dw() is True
            optimizer.step()
    assert_same_state(model, eager)


def test_backward_dw_is_there_as_long_as_the_graphs_are(device):
    x = torch.randn(8, 16, device=device)
    model = pianola.make_graphed_callables(MLP().to(device), (x,), delay_weight_gradients=True)
    model(x).sum().backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.backward_dw() is True and model.backward_dw() is False
    assert all(parameter.grad is not None for parameter in model.parameters())
    model.reset()
    assert not hasattr(model, "backward_dw")


def test_what_ran_eagerly_leaves_nothing(device):
    x = torch.randn(8, 16, device=device)
    model = pianola.make_graphed_callables(MLP().to(device), (x,), on_mismatch="eager", delay_weight_gradients=True)
    model(torch.randn(3, 16, device=device)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert model.backward_dw() is False


def test_a_call_before_the_weights_are_through_is_refused(device):
    x = torch.randn(8, 16, device=device)
    model = pianola.make_graphed_callables(MLP().to(device), (x,), delay_weight_gradients=True)
    model(x).sum().backward()
    with pytest.raises(pianola.UsageError, match="1 of 1 calls wait for backward_weights\\(\\) \\(backward_dw\\(\\) in Python\\)"):
        model(x)
    assert model.backward_dw()
    model(x)


def test_hooks_see_gradients_when_they_come(device):
    torch.manual_seed(0)
    model = MLP(layers=1).to(device)
    weight, seen = model.layers[0].weight, []
    weight.register_post_accumulate_grad_hook(lambda parameter: seen.append(parameter.grad.clone()))
    x = torch.randn(8, 16, device=device, requires_grad=True)
    graphed = pianola.make_graphed_callables(model, (x,), delay_weight_gradients=True)
    graphed(x).sum().backward()
    assert seen == []
    graphed.backward_dw()
    assert len(seen) == 1
    assert_same("seen", seen[0], weight.grad)


ORDERS = {
    "at once": [1, 2, -2, -2.5, -1, -1.5, 1, 2, -2, -2.5, -1, -1.5],
    "behind the last backward": [1, 2, 1, 2, -2, -1, -2, -1, -2.5, -1.5, -2.5, -1.5],
    "of the first chunk": [1, 2, 1, 2, -2, -1, -1.5, -2, -1, -1.5],
}


def stage(device):
    torch.manual_seed(5)
    return [encoder_layer().to(device) for _ in range(4)]


def run_stage(order, layers, weights, device, seed):
    """Two chunks of two layers; `layers` has a function per chunk, microbatch and layer. Other ranks are fixed tensors."""
    inputs = {(c, m): x for (c, m), x in zip([(c, m) for c in (1, 2) for m in (0, 1)], batches(4, (2, 8, 16), device, seed))}
    forwards, backwards, later = {1: 0, 2: 0}, {1: 0, 2: 0}, {1: 0, 2: 0}
    outputs, made = {}, []
    torch.manual_seed(seed)
    for entry in order:
        chunk = abs(int(entry))
        if entry > 0:
            m = forwards[chunk]
            forwards[chunk] += 1
            x = inputs[chunk, m].clone().requires_grad_()
            y = x
            for function in layers[chunk, m]:
                y = function(y)
            outputs[chunk, m] = x, y
        elif entry == int(entry):
            m = backwards[chunk]
            backwards[chunk] += 1
            x, y = outputs.pop((chunk, m))
            y.square().sum().backward()
            made.append(x.grad)
        else:
            m = later[chunk]
            later[chunk] += 1
            for function in reversed(layers[chunk, m]):
                weights(function)
    return made


@pytest.mark.parametrize("name", ORDERS)
def test_transformer_engines_order_takes_delayed_weights(device, name):
    order = ORDERS[name]
    eager, layers = stage(device), stage(device)
    samples = tuple((torch.randn(2, 8, 16, device=device, requires_grad=True),) for _ in range(8))
    functions = pianola.make_graphed_callables(tuple(layers), samples, _order=order, _num_layers_per_chunk=[2, 2])
    graphed = {(c, m): functions[4 * (c - 1) + 2 * m : 4 * (c - 1) + 2 * m + 2] for c in (1, 2) for m in (0, 1)}
    plain = {(c, m): eager[2 * (c - 1) : 2 * c] for c in (1, 2) for m in (0, 1)}
    for iteration in range(3):
        for module in (*eager, *layers):
            module.zero_grad()
        expected = run_stage(order, plain, lambda layer: None, device, iteration)
        actual = run_stage(order, graphed, lambda function: function.backward_dw(), device, iteration)
        for one, other in zip(actual, expected):
            assert_same("gradient of a stage's input", one, other)
        for one, other in zip(layers, eager):
            assert_same_state(one, other)


def test_delayed_weights_out_of_turn_are_refused(device):
    samples = tuple((torch.randn(2, 8, 16, device=device, requires_grad=True),) for _ in range(2))
    first, second = pianola.make_graphed_callables((encoder_layer().to(device),), samples, _order=[1, 1, -1, -1, -1.5, -1.5])
    a, b = (f(torch.randn(2, 8, 16, device=device, requires_grad=True)) for f in (first, second))
    a.sum().backward()
    with pytest.raises(pianola.ScheduleError, match="expected backward of chunk 1, microbatch 2, got weight gradients of chunk 1"):
        first.backward_dw()
    b.sum().backward()
    assert first.backward_dw() and second.backward_dw()


def test_an_order_and_the_option_are_refused_together(device):
    samples = tuple((torch.randn(2, 8, 16, device=device, requires_grad=True),) for _ in range(1))
    with pytest.raises(pianola.UsageError, match="which says which chunks delay them"):
        pianola.make_graphed_callables(
            (encoder_layer().to(device),), samples, _order=[1, -1, -1.5], delay_weight_gradients=True
        )


class Later:
    """A training loop of a language model whose graphed layers delay their weights' gradients."""

    def __init__(self, graph, microbatches=1, in_flight=1):
        self.graph, self.microbatches, self.in_flight = graph, microbatches, in_flight
        self.layers, self.computed = {}, []

    def patch(self, model):
        self.layers[model] = self.graph(model)
        return self.layers[model]

    def loop(self, model, optimizer, step, device):
        optimizer.zero_grad()
        losses, layers = [], self.layers.get(model)
        for first in range(0, self.microbatches, self.in_flight):
            group = [loss_of(model, 10 * step + first + i, device) for i in range(self.in_flight)]
            for loss in group:
                loss.backward()
            if layers is not None:
                self.computed.append([layers.backward_dw() for _ in group])
            losses += group
        optimizer.step()
        return losses


@pytest.mark.parametrize("microbatches, in_flight", [(1, 1), (3, 1), (4, 4)])
def test_layers_of_a_language_model_train_as_eager(device, microbatches, in_flight):
    later = Later(lambda model: pianola.graph_layers(model, delay_weight_gradients=True), microbatches, in_flight)
    assert_equal(lambda: Gpt(layers=3), later.loop, device, steps=12, graph=later.patch)
    assert all(any(step) for step in later.computed[-5:]) and not any(later.computed[0])


def test_a_layer_whose_weights_others_read_computes_them_at_once(device):
    class Tied(Gpt):
        def __init__(self):
            super().__init__()
            self.h[2].mlp = self.h[0].mlp

    later = Later(lambda model: pianola.graph_layers(model, delay_weight_gradients=True), microbatches=2)
    assert_equal(Tied, later.loop, device, steps=12, graph=later.patch)


@pytest.mark.parametrize("scope", [(), ("attn",), ("attn", "mlp")], ids=" ".join)
def test_the_configuration_delays_them(device, scope):
    config = pianola.CudaGraphConfig(
        cuda_graph_impl="local", cuda_graph_modules=list(scope), delay_wgrad_compute=True, gradient_accumulation_fusion=True
    )
    later = Later(lambda model: pianola.apply_config(model, config), microbatches=2)
    assert_equal(lambda: Gpt(layers=3), later.loop, device, steps=12, graph=later.patch)
    assert all(any(step) for step in later.computed[-5:])


def test_layers_whose_weights_nobody_asks_for_are_refused(device):
    model = Gpt().to(device)
    pianola.graph_layers(model, delay_weight_gradients=True, warmup=1, max_in_flight=2)
    with pytest.raises(pianola.UsageError, match="2 calls with .* wait for backward_weights\\(\\)"):
        for step in range(12):
            loss_of(model, step, device).backward()


def test_a_graphed_model_of_two_shapes_takes_them_in_order(device):
    eager, model = twins(MLP(), device)
    graphed = pianola.graphed(model, warmup=1, delay_weight_gradients=True)
    for step in range(8):
        for module in (eager, model):
            module.zero_grad()
        inputs = [x.requires_grad_() for rows in (8, 5) for x in batches(1, (rows, 16), device, seed=step)]
        for x in inputs:
            eager(x).square().sum().backward()
        for loss in [graphed(x).square().sum() for x in inputs]:
            loss.backward()
        done = [graphed.forward.backward_dw() for _ in range(3)]
        assert done == ([True, True, False] if step >= 1 else [False] * 3), (step, done)
        assert_same_state(model, eager)


def test_copies_of_the_model_share_nothing_with_it(device):
    model = MLP().to(device)
    other = copy.deepcopy(model)
    x = torch.randn(8, 16, device=device)
    graphed = pianola.make_graphed_callables(model, (x,), delay_weight_gradients=True)
    other(x).sum().backward()
    graphed(x).sum().backward()
    graphed.backward_dw()
    assert_same_state(model, other)
