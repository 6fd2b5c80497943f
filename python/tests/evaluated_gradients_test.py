"""Gradients of parameters that a function computes with, and whose results need none: another thread may train them meanwhile, and the
function may look at them all the same."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import attrgetter

import pytest
import torch

import pianola
from twins import MLP, assert_same, batches, reasons, replays, twins

CALLS = 12


@torch.no_grad()
def evaluated(model, x):
    return model(x)


def detached(model, x):
    return model(x).detach()


@pytest.mark.parametrize("evaluate", [evaluated, detached])
@pytest.mark.parametrize("make", [MLP, lambda: torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)])
def test_another_thread_may_train_in_the_middle_of_an_evaluation(device, make, evaluate):
    """Observed, warmed up, captured and replayed: whenever it looks, it finds the gradients that it made itself."""
    model = make().to(device)
    trained, strange = [], []

    def look(when):
        if any(p.grad is not gradient for p, gradient in zip(model.parameters(), trained, strict=True)):
            strange.append(when)

    def train(when):
        look(f"before {when}")
        model.zero_grad()
        model(torch.ones(2, 16, device=device)).square().mean().backward()
        trained[:] = [parameter.grad for parameter in model.parameters()]

    with ThreadPoolExecutor(1) as other_thread:

        def evaluate_twice(x):
            first = evaluate(model, x)
            other_thread.submit(train, "the second evaluation").result()  # whose code this thread does not run
            return first + evaluate(model, x)

        graphed = pianola.graphed(evaluate_twice)
        model(torch.ones(2, 16, device=device)).sum().backward()
        trained[:] = [parameter.grad for parameter in model.parameters()]
        for x in batches(CALLS, (4, 16), device):
            result = graphed(x)
            look("a call")
            assert_same("result", result, 2 * model(x).detach())
            train("the next call")
    assert not strange
    assert replays(graphed) > 3, reasons(graphed)


def run_both(device, make, between):
    """make(model) gives the function; between(model, i, kept) comes before call `i`."""
    kept = []
    model, eager_model = twins(MLP(), device)
    graphed, eager = pianola.graphed(make(model)), make(eager_model)
    for i, x in enumerate(batches(CALLS, (4, 16), device)):
        for each in (model, eager_model):
            between(each, i, kept)
        assert_same(f"result {i}", graphed(x), eager(x))
        for (name, one), other in zip(model.named_parameters(), eager_model.parameters()):
            assert_same(f"gradient of {name} behind call {i}", one.grad, other.grad)
    return graphed


def asks(model):
    def function(x):
        with torch.no_grad():
            return model(x) if model.layers[0].weight.grad is None else 2 * model(x)

    return function


def asks_by_name(model):
    @torch.no_grad()
    def function(x):
        return model(x) if getattr(model.layers[0].weight, "grad") is None else 2 * model(x)

    return function


def adds_up(model):
    def function(x):
        return model(x).detach() + sum(p.grad.sum() for p in model.parameters() if p.grad is not None)

    return function


def reads_by_other_names(model, names=("data", "grad")):
    def norms(parameters):
        for parameter in parameters:
            for value in (getattr(parameter, name) for name in names):
                if value is not None:
                    yield value.norm()

    def function(x):
        with torch.no_grad():
            return model(x) + sum(norms(model.parameters()))

    return function


def reads_by_a_getter(model):
    gradient = attrgetter("grad")

    def function(x):
        with torch.no_grad():
            return model(x) + sum(value.norm() for value in map(gradient, model.parameters()) if value is not None)

    return function


def clips(model):
    from torch.nn.utils import clip_grad_norm_ as clip

    def function(x):
        clip(model.parameters(), 0.1)
        with torch.no_grad():
            return model(x)

    return function


def zeroes(model):
    zero = partial(model.zero_grad, False)

    @torch.no_grad()
    def function(x):
        zero()
        return model(x)

    return function


def train(model, i, kept):
    """Another gradient for each call; the old ones live on."""
    kept += [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    model(torch.full((2, 16), 1.0 + i, device=next(model.parameters()).device)).square().mean().backward()


def train_no_more(model, i, kept):
    if i < 6:
        train(model, i, kept)
    elif i == 6:
        model.zero_grad()


@pytest.mark.parametrize("between", [train, train_no_more])
@pytest.mark.parametrize("make", [asks, asks_by_name, adds_up, reads_by_other_names, reads_by_a_getter, clips, zeroes])
def test_an_evaluation_that_looks_at_gradients_equals_eager(device, make, between):
    run_both(device, make, between)


@pytest.mark.parametrize("at", [0, 6])
def test_a_hook_sees_the_gradients_that_an_evaluation_computes(device, at):
    def make(model):
        from torch.autograd import grad as differentiate

        def function(x):
            with torch.enable_grad():
                (gradient,) = differentiate(model(x).square().mean(), model.layers[0].weight)
            return gradient + 1

        return function

    def hook(model, i, _):
        if i == at:
            model.layers[0].weight.register_hook(lambda gradient: 3 * gradient)

    run_both(device, make, hook)


def store(parameters, name, values):
    for parameter, value in zip(parameters, values):
        setattr(parameter, name, value)


def store_by_descriptor(parameters, _, values):
    for parameter, value in zip(parameters, values):
        torch.Tensor.grad.__set__(parameter, value)


@pytest.mark.parametrize("put", [store, store_by_descriptor])
def test_a_gradient_that_is_a_result_too_is_there_behind_each_call(device, put):
    def make(model):
        def function(x):
            gradients = torch.autograd.grad(model(x).square().mean(), list(model.parameters()))
            put(list(model.parameters()), "grad", gradients)
            return gradients[0]

        return function

    run_both(device, make, lambda model, i, _: model.zero_grad())


@pytest.mark.parametrize("at", range(1, 7))
def test_parameters_that_are_unfrozen_just_before_the_capture_get_gradients(device, at):
    model, eager_model = (each.requires_grad_(False) for each in twins(MLP(), device))
    graphed = pianola.graphed(lambda x: model(x))
    for i, x in enumerate(batches(CALLS, (4, 16), device)):
        if i == at:
            model.requires_grad_(True)
            eager_model.requires_grad_(True)
        for parameter in (*model.parameters(), *eager_model.parameters()):
            parameter.grad = torch.ones_like(parameter)
        result, expected = graphed(x), eager_model(x)
        assert result.requires_grad == expected.requires_grad
        if i >= at:
            result.sum().backward()
            expected.sum().backward()
        assert_same("result", result.detach(), expected.detach())
        for (name, one), other in zip(model.named_parameters(), eager_model.parameters()):
            assert_same(f"gradient of {name} behind call {i}", one.grad, other.grad)
    assert replays(graphed) > 3, reasons(graphed)
