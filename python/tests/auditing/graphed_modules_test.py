"""Modules that are going to be graphed for themselves."""


import pytest
import torch

import pianola
from marked_steps import check, found, inputs, marked
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
        assert not report.findings, f"{report}"


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


def test_callables_must_be_modules():
    with pytest.raises(pianola.UsageError, match="callables holds a function"):
        pianola.audit(lambda: None, callables=[lambda x: x])
