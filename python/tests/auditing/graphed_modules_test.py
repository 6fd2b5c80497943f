"""Modules that are going to be graphed for themselves."""


import pytest
import torch

import pianola
from marked_steps import check, findings_of, found, inputs, marked
from twins import ConvNet, batches


class Hooked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used = torch.nn.Linear(16, 16)
        self.unused = torch.nn.Linear(16, 16)  # PG905
        self.register_buffer("scale", torch.ones(16, requires_grad=True))  # PG904
        self.spare = torch.nn.Parameter(torch.zeros(16))  # PG905

    def forward(self, x):
        return self.used(x) * self.scale


def prints_nothing(module, args, output):  # PG1004
    return None


def test_a_module_that_cannot_be_graphed(device):
    module = Hooked().to(device)
    module.scale = module.scale.detach().requires_grad_()
    module.register_forward_hook(prints_nothing)
    for warmup in (1, 0):
        report = pianola.audit(module, batches=inputs(device), warmup=warmup)
        assert found(report, __file__) == marked(Hooked) | marked(prints_nothing), f"{report}"
    assert [one.what for one in report.findings if one.rule == "PG905"] == [
        "the parameter 'model.spare' gets no gradient",
        "the parameter 'model.unused.weight' gets no gradient",
    ]
    assert not module._backward_hooks and not module.spare._post_accumulate_grad_hooks
    assert all(parameter.grad is None for parameter in module.parameters())


def test_a_module_that_can_be_graphed(device):
    for module in (ConvNet().to(device), ConvNet().to(device).eval()):
        report = pianola.audit(module, batches=[(x,) for x in batches(2, (2, 3, 8, 8), device)])
        assert not findings_of(report), f"{report}"


def test_a_second_forward_before_backward(device):
    layer = torch.nn.Linear(16, 16).to(device)

    def step(x):
        one = layer(x)
        other = layer(x * 2)  # PG907
        (one + other).sum().backward()

    check(test_a_second_forward_before_backward, step, batches=inputs(device), callables=[layer])


def test_one_forward_after_the_other(device):
    layer = torch.nn.Linear(16, 16).to(device)

    def step(x):
        for part in x.chunk(2):
            layer(part).sum().backward()
        with torch.no_grad():
            layer(x)
            return layer(x)

    check(test_one_forward_after_the_other, step, batches=inputs(device), callables=[layer])


def test_gradients_of_gradients(device):
    layer = torch.nn.Linear(16, 16).to(device)

    def step(x):
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(layer(x).sum(), x, create_graph=True)  # PG1007
        gradient.square().sum().backward()

    report = pianola.audit(step, batches=inputs(device), callables=[layer], trial=False)
    assert marked(test_gradients_of_gradients) <= found(report, __file__), f"{report}"
    assert "PG1007" not in {rule for rule, _ in found(pianola.audit(step, batches=inputs(device), trial=False), __file__)}


class Both(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 16)

    def forward(self, x, y, *, scale=None):  # PG905
        return self.layer(x) if scale is None else self.layer(x) * scale


def pairs(device, requires_grad=(True, True)):
    return [tuple(x.clone().requires_grad_(one) for one in requires_grad) for (x,) in inputs(device)]


def test_an_input_that_no_result_depends_on(device):
    """As make_graphed_callables, which refuses it."""
    module = Both().to(device)
    with pytest.raises(pianola.UsageError, match="input 1 requires grad, but no output depends on it"):
        pianola.make_graphed_callables(module, pairs(device)[0])
    report = pianola.audit(module, batches=pairs(device))
    assert found(report, __file__) == marked(Both), f"{report}"
    (finding,) = findings_of(report)
    assert finding.what == "input 1 of 'model' requires grad, and no result depends on it" and not report.ok
    assert not findings_of(pianola.audit(module, batches=pairs(device, (True, False))))
    with torch.no_grad():
        assert not findings_of(pianola.audit(module, batches=pairs(device)))

    def step(x, y):
        return module(x, y).sum() + y.sum()

    report = pianola.audit(step, batches=pairs(device), callables=[module], trial=False)
    assert [one.what for one in findings_of(report)] == ["input 1 of 'module' requires grad, and no result depends on it"]


def test_an_input_of_a_function_that_no_result_depends_on(device):
    module = Both().to(device)

    def uses_one(x, y, scale):  # PG905
        return module(x * 2, y, scale=scale)

    report = pianola.audit(uses_one, batches=[(x, y, x[:1].detach()) for x, y in pairs(device)], trial=False)
    assert found(report, __file__) == marked(uses_one) and report.ok, f"{report}"

    def trains(x, y):
        module(x, y).sum().backward()

    assert "PG905" not in {rule for rule, _ in found(pianola.audit(trains, batches=pairs(device), trial=False), __file__)}


def test_inputs_that_are_used_in_roundabout_ways(device):
    """Returned as it is, by a view, through another layer, inside a checkpoint, before it is written in place."""
    from torch.utils.checkpoint import checkpoint

    def writes(x, y):
        result = layer(x) * y.view(-1)[0]
        if not y.is_leaf:
            y.mul_(2)
        return result

    layer = torch.nn.Linear(16, 16).to(device)
    steps = [
        lambda x, y: (layer(x), y),
        lambda x, y: layer(x) + y.view(-1)[0],
        lambda x, y: layer(x + layer(y)),
        lambda x, y: checkpoint(lambda a, b: layer(a) * b, x, y, use_reentrant=False),
        lambda x, y: checkpoint(lambda a, b: layer(a) * b, x, y, use_reentrant=True),
        writes,
    ]
    for step in steps:
        for batches_ in (pairs(device), [(x * 2, y * 2) for x, y in pairs(device)]):
            report = pianola.audit(step, batches=batches_, trial=False)
            assert "PG905" not in {one.rule for one in report.findings}, f"{report}"


def test_callables_must_be_modules():
    with pytest.raises(pianola.UsageError, match="callables holds a function"):
        pianola.audit(lambda: None, callables=[lambda x: x])
