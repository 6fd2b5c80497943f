"""delay_weight_gradients where a part of the model, or of the loop, is not made for it: right, or refused with a sentence."""

import pianola
import pytest
import torch
from torch.utils.checkpoint import checkpoint
from twins import MLP, assert_same, assert_same_state, batches, twins


class Recomputed(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False) + x


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
        return torch.nn.Sequential(Recomputed(Normed()), torch.nn.Linear(16, 4))

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


def test_what_an_evicted_graph_has_left_is_computed(device):
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


def test_a_call_whose_graph_goes_before_its_backward_leaves_nothing(device):
    """Its backward can still run, and computes all."""
    eager, model = twins(MLP(), device)
    graphed = pianola.graphed(model, warmup=1, capacity=1, delay_weight_gradients=True)
    for step in range(6):
        for module in (eager, model):
            module.zero_grad()
        inputs = [torch.randn(rows, 16, generator=torch.Generator().manual_seed(10 * step + rows)).to(device) for rows in (2, 3)]
        for x in inputs:
            eager(x).square().sum().backward()
        for loss in [graphed(x).square().sum() for x in inputs]:
            loss.backward()
        while graphed.backward_dw():
            pass
        for one, other in zip(model.parameters(), eager.parameters()):
            torch.testing.assert_close(one.grad, other.grad)


def test_the_users_own_history_stays_as_it_is(device):
    """A callable that goes on from what was computed outside is refused; what leads to it is not the callable's to change."""

    class GoesOn(MLP):
        def forward(self, x):
            return super().forward(x) + self.outside.sum()

    model = GoesOn().to(device)
    x = torch.randn(8, 16, device=device)
    model.outside = model.layers[0](x)
    on_cuda = "a backward pass runs on the streams of its forward"
    said = on_cuda if device.type == "cuda" else "gave gradients to 2 parameters under capture, but to 0 in warm-up"
    with pytest.raises(pianola.CaptureError, match=said):
        pianola.make_graphed_callables(model, (x,), delay_weight_gradients=True)
    model.outside.sum().backward()
    assert model.layers[0].weight.grad is not None


def test_a_gradient_that_is_written_after_it_was_noted_is_refused(device):
    class Halves(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 0.5

        @staticmethod
        def backward(ctx, gradient):
            return gradient.mul_(0.5)

    class Branches(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(16, 16, bias=False)

        def forward(self, x):
            return Halves.apply(x) + self.linear(x)

    x = torch.randn(8, 16, device=device, requires_grad=True)
    with pytest.raises(pianola.UnsupportedError, match="writes a gradient in place that the gradients of weights need later"):
        pianola.make_graphed_callables(Branches().to(device), (x,), delay_weight_gradients=True)
