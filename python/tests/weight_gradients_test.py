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


def compare(eager, model, call, weights, shape, device, steps=3):
    for step in range(steps):
        for module in (eager, model):
            module.zero_grad()
        for x in batches(2, shape, device, seed=step):
            eager(x.clone().requires_grad_()).square().sum().backward()
            call(x.clone().requires_grad_()).square().sum().backward()
            weights()
        assert_same_state(model, eager)


def test_a_recomputed_block_is_recomputed_once(device):
    """Its buffers would be updated twice otherwise."""

    class Normed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.norm = torch.nn.Linear(16, 16), torch.nn.BatchNorm1d(16)

        def forward(self, x):
            return torch.relu(self.norm(self.linear(x)))

    def model():
        return torch.nn.Sequential(Checkpointed(Normed(), reentrant=False), torch.nn.Linear(16, 4))

    eager, graphed = twins(model(), device)
    sample = torch.randn(8, 16, device=device, requires_grad=True)
    pianola.make_graphed_callables(graphed, (sample,), delay_weight_gradients=True)
    assert graphed.forward.info().delayed == 2  # those of the last layer
    compare(eager, graphed, graphed, graphed.backward_dw, (8, 16), device)


class Mm(torch.autograd.Function):
    """A product of the user's, whose backward may run once: it changes what it is given."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        gradient = gradient.clone().mul_(0.5)
        return gradient @ weight.t(), x.t() @ gradient


def test_a_function_of_the_users_runs_once_whatever_its_name(device):
    class Uses(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.last = torch.nn.Parameter(torch.randn(16, 16)), torch.nn.Linear(16, 4)

        def forward(self, x):
            return self.last(Mm.apply(x, self.weight))

    eager, model = twins(Uses(), device)
    pianola.make_graphed_callables(model, (torch.randn(8, 16, device=device, requires_grad=True),), delay_weight_gradients=True)
    assert model.forward.info().delayed == 2
    compare(eager, model, model, model.backward_dw, (8, 16), device)


def test_gradients_that_activations_keep_are_those_of_eager(device):
    class Keeps(MLP):
        def forward(self, x):
            self.kept = self.layers[0](x)
            self.kept.retain_grad()
            return super().forward(x) + self.kept

    eager, model = twins(Keeps(), device)
    pianola.make_graphed_callables(model, (torch.randn(8, 16, device=device, requires_grad=True),), delay_weight_gradients=True)
    compare(eager, model, model, model.backward_dw, (8, 16), device)
    assert_same("kept", model.kept.grad, eager.kept.grad)


@pytest.mark.parametrize("ask", ["grad", "backward"])
def test_a_weight_that_is_asked_for_by_name_is_refused(device, ask):
    x = torch.randn(8, 16, device=device)
    model = pianola.make_graphed_callables(MLP().to(device), (x,), delay_weight_gradients=True)
    loss = model(x).sum()
    weights = [layer.weight for layer in model.layers]
    with pytest.raises(pianola.UsageError, match="was asked for by name, which a backward pass of this callable leaves for later"):
        torch.autograd.grad(loss, weights, allow_unused=True) if ask == "grad" else loss.backward(inputs=weights)
    loss.backward()
    assert model.backward_dw()


def test_a_weight_that_a_reducer_watches_is_computed_at_once(device):
    """DistributedDataParallel looks at AccumulateGrad nodes: what comes late would be reduced in another iteration, or never."""
    model = MLP().to(device)
    seen, watched = [], model.layers[1].weight
    accumulator = watched.expand_as(watched).grad_fn.next_functions[0][0]
    accumulator.register_hook(lambda *_: seen.append(watched.grad is not None))
    x = torch.randn(8, 16, device=device)
    pianola.make_graphed_callables(model, (x,), delay_weight_gradients=True)
    model(x).sum().backward()
    assert watched.grad is not None and len(seen) == 1 and model.layers[0].weight.grad is None
    assert model.backward_dw()
    other = model.layers[0].weight
    late = other.expand_as(other).grad_fn.next_functions[0][0]
    late.register_hook(lambda *_: None)
    with pytest.raises(pianola.GuardError, match="is watched since the capture"):
        model(x)


def test_a_step_of_the_optimizer_in_between_is_refused(device):
    class Merged(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = torch.nn.Parameter(torch.randn(16, 2)), torch.nn.Parameter(torch.randn(2, 16))

        def forward(self, x):
            return x @ (self.a @ self.b)

    model = Merged().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(8, 16, device=device)
    pianola.make_graphed_callables(model, (x,), delay_weight_gradients=True)
    model(x).square().sum().backward()
    with torch.no_grad():
        model.b.mul_(0.5)
    with pytest.raises(pianola.GuardError, match="'b'.* was written after backward\\(\\), .* these gradients are given up"):
        model.backward_dw()
    optimizer.zero_grad()
    model(x).square().sum().backward()  # the slot is free again
    assert model.backward_dw()


def test_a_weight_that_is_frozen_in_between_is_refused_and_not_lost(device):
    eager, model = twins(MLP(), device)
    x = torch.randn(8, 16, device=device)
    pianola.make_graphed_callables(model, (x,), grad="clone", delay_weight_gradients=True)
    model(x).sum().backward()
    eager(x).sum().backward()
    weight = model.layers[0].weight.requires_grad_(False)
    with pytest.raises(pianola.GuardError, match="was frozen after backward"):
        model.backward_dw()
    weight.requires_grad_()
    assert model.backward_dw()
    assert_same_state(model, eager)


def test_what_has_left_something_is_not_evicted(device):
    eager, model = twins(MLP(), device)
    graphed = pianola.graphed(model, warmup=1, capacity=2, delay_weight_gradients=True)
    for step in range(10):
        for module in (eager, model):
            module.zero_grad()
        for rows in (2, 3, 4, 5):
            x = torch.randn(rows, 16, generator=torch.Generator().manual_seed(10 * step + rows)).to(device)
            eager(x).square().sum().backward()
            graphed(x).square().sum().backward()
        while graphed.backward_dw():
            pass
        for one, other in zip(model.parameters(), eager.parameters()):
            torch.testing.assert_close(one.grad, other.grad)  # what ran eagerly in between was added first


def test_reset_computes_what_was_left(device):
    for make in (
        lambda model, x: pianola.make_graphed_callables(model, (x,), delay_weight_gradients=True).reset,
        lambda model, x: pianola.graphed(model, warmup=1, delay_weight_gradients=True).forward.reset,
    ):
        eager, model = twins(MLP(), device)
        x = torch.randn(8, 16, device=device)
        reset = make(model, x)
        for _ in range(3):
            model.backward_dw()
            model.zero_grad()
            model(x).sum().backward()
        reset()
        eager(x).sum().backward()
        assert_same_state(model, eager)
        assert not hasattr(model, "backward_dw")


def test_a_method_of_the_modules_own_stands_back(device):
    class Own(MLP):
        def backward_dw(self):
            raise AssertionError("nothing is in its store")

    eager, model = twins(Own(), device)
    x = torch.randn(8, 16, device=device)
    pianola.make_graphed_callables(model, (x,), delay_weight_gradients=True)
    model(x).sum().backward()
    assert model.backward_dw() is True
    eager(x).sum().backward()
    assert_same_state(model, eager)
    model.reset()
    with pytest.raises(AssertionError):
        model.backward_dw()


def test_compiled_modules_have_none_to_leave(device):
    x = torch.randn(8, 16, device=device)
    with pytest.raises(pianola.ConfigError, match="none can be left for later"):
        pianola.make_graphed_callables(MLP().to(device), (x,), compile=True, delay_weight_gradients=True)


def test_copies_of_the_model_share_nothing_with_it(device):
    model = MLP().to(device)
    other = copy.deepcopy(model)
    x = torch.randn(8, 16, device=device)
    graphed = pianola.make_graphed_callables(model, (x,), delay_weight_gradients=True)
    other(x).sum().backward()
    graphed(x).sum().backward()
    graphed.backward_dw()
    assert_same_state(model, other)
