"""Results that are more than new tensors: parameters, subclasses, named tensors, views."""

import warnings

import pytest
import torch

import pianola
from twins import assert_same


class Marked(torch.Tensor):
    pass


def calls(function, make, count=6, **options):
    """The last result, the input it was made of, and the reasons why it stayed eager."""
    reasons = []
    graphed = pianola.graphed(function, on_fallback=reasons.append, **options)
    for _ in range(count):
        x = make()
        result = graphed(x)
    return result, x, reasons


@pytest.mark.parametrize("gradients", [True, False])
def test_a_subclass_stays_eager_and_says_so(device, gradients):
    with torch.set_grad_enabled(gradients):
        result, x, reasons = calls(lambda x: (x * 2).as_subclass(Marked), lambda: torch.randn(3, device=device))
    assert type(result) is Marked and len(reasons) == 1
    assert "returns a results_test.Marked, a tensor class" in reasons[0] and "as_subclass(torch.Tensor)" in reasons[0]
    with pytest.raises(pianola.UsageError, match="returns a results_test.Marked"):
        pianola.make_graphed_callables(lambda x: (x * 2).as_subclass(Marked), (torch.randn(3, device=device),))


def test_a_parameter_is_returned_itself_or_not_graphed(device):
    weight = torch.nn.Parameter(torch.randn(3, device=device))
    result, _, reasons = calls(lambda x: (x * weight, weight), lambda: torch.randn(3, device=device))
    assert result[1] is weight and "output 1 is a Float parameter of shape [3] itself" in reasons[0]
    with torch.no_grad():
        result, _, reasons = calls(lambda x: (x * weight, weight), lambda: torch.randn(3, device=device))
    assert result[1] is weight and not reasons


@pytest.mark.skipif(not hasattr(torch.Tensor, "rename"), reason="torch 2.15 has no named tensors")
def test_names_stay(device):
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # named tensors are experimental
        result, x, _ = calls(lambda x: (x * 2).rename("N", "C"), lambda: torch.randn(3, 2, device=device))
        assert result.names == ("N", "C")
        assert_same("result", result.rename(None), x * 2)


@pytest.mark.parametrize("outputs", ["alias", "clone"])
@pytest.mark.parametrize("trains", [True, False])
def test_views_stay_views(device, outputs, trains):
    weight = torch.nn.Parameter(torch.ones(4, device=device))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def function(x):
        if trains:
            optimizer.zero_grad()
            (x * weight).sum().backward()
            optimizer.step()
        y = (x * 2).detach()
        return x, x[1:], y, y[:2]

    with torch.set_grad_enabled(trains):
        (same, rest, y, part), x, reasons = calls(function, lambda: torch.randn(4, device=device), outputs=outputs)
    assert same is x and not reasons
    rest.zero_()
    part.fill_(9)
    assert x[1:].tolist() == [0.0] * 3 and y[:2].tolist() == [9.0] * 2


@pytest.mark.parametrize("outputs", ["alias", "clone"])
def test_views_of_a_full_iteration_stay_views(device, outputs):
    weight = torch.nn.Parameter(torch.ones(4, device=device))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def step(microbatches):
        optimizer.zero_grad()
        (microbatches[0] * weight).sum().backward()
        optimizer.step()
        return microbatches[0][:2], weight, weight[1:]

    iteration = pianola.FullIteration(step, warmup=2, outputs=outputs)
    for _ in range(5):
        x = torch.randn(4, device=device)
        first, itself, rest = iteration([x])
    first.fill_(5)
    assert x[:2].tolist() == [5.0, 5.0] and itself is weight
    assert_same("view of the weight", rest, weight[1:])


def test_hooks_that_were_removed_are_none(device):
    model, x = torch.nn.Linear(4, 4).to(device), torch.randn(2, 4, device=device)
    for register in (torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook):
        register(model.weight, lambda *_: None).remove()
    pianola.make_graphed_callables(model, (x,))
    assert model.forward.info().through_autograd == 0
    register(model.bias, lambda *_: None).remove()
    model(x).sum().backward()
    assert model.bias.grad is not None
    handle = register(model.bias, lambda *_: None)
    loss = model(x).sum()
    with pytest.raises(pianola.GuardError, match="got a hook since the capture"):
        loss.backward()
    handle.remove()
