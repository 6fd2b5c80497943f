"""What reads values that change from call to call, and is no part by itself: the step stays eager, and says why."""

import contextvars

import pytest
import torch
from found import Sparse, descending, deterministic, expect_eager, expect_parts, graphs_are_faster, network  # noqa: F401
from pianola._found_calls import Place
from pianola._functions_around import parts_at
from pianola._scout import Scout
from torch import nn


def expect_refusal(device, function_name, said, make=lambda: nn.Linear(8, 8)):
    function = globals()[function_name]

    def step_of(model, optimizer):
        return descending(lambda model, x: globals()[function_name](model(x)).square().mean())(model, optimizer)

    expect_eager(make, device, said, step_of)
    assert globals()[function_name] is function


seen = []


def logging_all(x):
    seen.append(x.detach().max().item())
    return x * seen[-1]


counter = 0


def counting(x):
    global counter
    counter += 1
    return x * x.detach().sum().item()


def drawing(x):
    return x * x.detach().sum().item() + torch.rand_like(x)


def of_another_shape(x):
    return x[x[:, 0] > 0]


def remembering(x, cache={}):
    cache["last"] = x.detach().sum().item()
    return x * cache["last"]


def noting_its_calls(x):
    noting_its_calls.count += 1
    return x * x.detach().sum().item()


noting_its_calls.count = 0
weight = torch.ones(8)


def with_global_tensor(x):
    return x * x.detach().sum().item() * weight.to(x.device)


def descending_by_itself(x):
    loss = x.square().mean() * x.detach().sum().item()
    loss.backward(retain_graph=True)
    return loss


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("drawing", "drawing draws random numbers"),
        ("of_another_shape", "of_another_shape returns a tensor of another shape than it is given"),
        ("with_global_tensor", "with_global_tensor uses a tensor that it is not given"),
        ("descending_by_itself", "descending_by_itself runs a backward pass"),
        ("logging_all", "the function changes seen"),
        ("counting", "the function changes counter"),
        ("remembering", "remembering sets an attribute"),
        ("noting_its_calls", "the function changes noting_its_calls.count"),
    ],
)
def test_what_is_no_part_is_said(device, name, said):
    expect_refusal(device, name, said)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("logging_all", "changes seen"),
        ("counting", "changes counter"),
        ("remembering", "sets an attribute"),
        ("noting_its_calls", "has attributes"),
        ("leaving_nothing", ""),
    ],
)
def test_what_a_call_leaves_behind_is_seen(name, said):
    (part,) = parts_at([Place(globals(), name)])
    part.stand_in()
    with Scout() as scout:
        globals()[name](torch.ones(4, 8))
    part.step_aside()
    assert [(call.name, call.why_not) for call in scout.calls] == [(name, said)] and not scout.failure


def leaving_nothing(x):
    return x * x.detach().sum().item()


def in_a_table(x):
    return x * x.detach().sum().item()


table = {"sum": in_a_table}


def test_who_holds_a_function_otherwise_would_see_what_stands_in_for_it(device):
    def step_of(model, optimizer):
        return descending(lambda model, x: in_a_table(model(x)).square().mean())(model, optimizer)

    expect_eager(lambda: nn.Linear(8, 8), device, "no module or plain function is around aten::_local_scalar_dense", step_of)


def test_a_closure_is_no_part(device):
    def step_of(model, optimizer):
        def choose(x):
            return x * x.detach().sum().item()

        return descending(lambda model, x: choose(model(x)).square().mean())(model, optimizer)

    expect_eager(lambda: nn.Linear(8, 8), device, "no module or plain function is around aten::_local_scalar_dense", step_of)


class Switching(Sparse):
    """Its method is given what the step changes behind the call."""

    def forward(self, hidden):
        self.last = super().forward(hidden)
        return self.last


def test_what_its_module_keeps_is_told(device):
    expect_eager(network(Switching), device, "Sparse._mix is otherwise when the step is over")


class Trainer:
    def choose(self, x):
        return x * x.detach().sum().item()


def test_a_method_of_another_object_is_no_part(device):
    trainer = Trainer()

    def step_of(model, optimizer):
        return descending(lambda model, x: trainer.choose(model(x)).square().mean())(model, optimizer)

    expect_eager(lambda: nn.Linear(8, 8), device, "Trainer.choose is given an object", step_of)


mode = contextvars.ContextVar("mode", default=1.0)


def in_a_mode(x):
    return x * x.detach().sum().item() * mode.get()


def in_no_mode(x):
    return x * x.detach().sum().item()


@pytest.mark.parametrize("asks", [False, True])
def test_a_variable_of_the_context_that_is_set_around_the_call(device, asks):
    def loss_of(model, x):
        before = mode.set(2.0)
        hidden = in_a_mode(model(x)) if asks else in_no_mode(model(x))
        mode.reset(before)
        return hidden.square().mean()

    if asks:
        expect_eager(lambda: nn.Linear(8, 8), device, "in_a_mode is called in a context of its own", descending(loss_of))
    else:
        expect_parts(lambda: nn.Linear(8, 8), device, "in_no_mode: aten::", step_of=descending(loss_of))
