"""Functions and methods that read values which change from call to call, found in a step and left out of its graph."""

import functools
import importlib
import sys
import textwrap

import found
import pianola
import pytest
import torch
from found import (  # noqa: F401
    STEPS,
    Moe,
    Sparse,
    assert_alike,
    assert_freed,
    batch,
    descending,
    deterministic,
    expect_eager,
    expect_parts,
    graphs_are_faster,
    network,
)
from pianola._scout import Scout
from torch import nn


def test_a_function_stays_eager_and_the_module_around_it_is_in_the_graph(device):
    step = expect_parts(network(), device, "2 x dispatch: ")
    assert " (dispatch at found.py:" in str(step.info())
    assert found.dispatch.__code__.co_name == "dispatch"


def test_a_method_stays_eager(device):
    expect_parts(network(Sparse), device, "2 x Sparse._mix: aten::nonzero (_mix at found.py:")
    assert vars(Sparse)["_mix"].__code__.co_name == "_mix"


def keep_large(x, linear):
    """An early filter: only some rows are computed, and scattered back."""
    rows = x.abs().amax(-1) > 1.0
    filtered = x.clone()
    filtered[rows] = linear(x[rows])
    return filtered


class Filtering(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return keep_large(x, self.linear)


def test_a_filter_by_a_mask_is_a_part(device):
    expect_parts(lambda: nn.Sequential(nn.Linear(8, 8), Filtering(), nn.Linear(8, 8)), device, "keep_large: aten::")


def largest_of(x):
    return x * (1.0 + x.detach().abs().max().item())


def normalised(x):
    return largest_of(x) / (1.0 + x.detach().abs().mean())


def test_the_step_itself_may_call_it(device):
    def step_of(model, optimizer):
        return descending(lambda model, x: (normalised(model(x)) + largest_of(-x)).square().mean())(model, optimizer)

    expect_parts(lambda: nn.Linear(8, 8), device, "2 x largest_of: aten::_local_scalar_dense (largest_of at found", step_of=step_of)


def sorted_sum(x, depth):
    """Calls itself."""
    largest = x.detach().max().item()
    if depth == 0 or largest < 0.5:
        return x * 2.0
    return x / largest + sorted_sum(x - 0.5, depth - 1)


def test_a_function_that_calls_itself_is_one_part(device):
    def step_of(model, optimizer):
        return descending(lambda model, x: sorted_sum(model(x), 3).square().mean())(model, optimizer)

    expect_parts(lambda: nn.Linear(8, 8), device, "sorted_sum: aten::_local_scalar_dense", step_of=step_of)


def scaled(by):
    def decorate(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return by * function(*args, **kwargs)

        return wrapper

    return decorate


@scaled(by=2.0)
@torch.no_grad()
def thresholds(x):
    return torch.full_like(x, x.mean().item())


def test_a_wrapper_is_the_part(device):
    def step_of(model, optimizer):
        return descending(lambda model, x: (model(x) - thresholds(x)).square().mean())(model, optimizer)

    expect_parts(lambda: nn.Linear(8, 8), device, "thresholds: aten::_local_scalar_dense (thresholds at", step_of=step_of)


LIBRARY = """
import torch

def route(x, chosen, experts):
    result = torch.zeros_like(x)
    for number, expert in enumerate(experts):
        (tokens,) = torch.where(chosen == number)
        result = result.index_add(0, tokens, expert(x[tokens]))
    return result
"""
MODEL = """
import torch
from torch import nn
from {library} import route as send
from {library} import route

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        chosen = self.gate(x).argmax(-1)
        return x + send(x, chosen, self.experts) + route(x, (chosen + 1) % 4, self.experts)
"""


def test_functions_that_are_imported_by_name(device, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    library, model = f"moe_library_{device.type}", f"moe_model_{device.type}"
    (tmp_path / f"{library}.py").write_text(textwrap.dedent(LIBRARY))
    (tmp_path / f"{model}.py").write_text(textwrap.dedent(MODEL).format(library=library))
    block = importlib.import_module(model).Block
    expect_parts(lambda: nn.Sequential(nn.Linear(8, 8), block()), device, f"2 x route: aten::nonzero (route at {library}.py:")
    assert sys.modules[model].send is sys.modules[library].route


shared = nn.Linear(8, 8)


def with_global_weights(x):
    rows = x[:, 0] > 0
    return x + shared(x[rows]).tanh().sum() + shared.weight.mean()


def test_a_module_that_the_code_of_a_function_names(device):
    def make():
        model = nn.Sequential(nn.Linear(8, 8))
        shared.reset_parameters()
        model.append(shared)
        return model

    def step_of(model, optimizer):
        return descending(lambda model, x: with_global_weights(model[0](x)).square().mean() + model[1](x).tanh().mean())(model, optimizer)

    if device.type == "cpu":
        expect_eager(make, device, "a module in one that reads values that change is called from elsewhere, too", step_of)
        alone = descending(lambda model, x: with_global_weights(model[0](x)).square().mean() + shared.weight.tanh().sum())
        expect_parts(make, device, "with_global_weights: aten::index", step_of=alone)


def own_weight(x, module):
    return x + module.weight.sum() * x[x[:, 0] > 0].mean()


def test_weights_that_the_step_uses_elsewhere_too(device):
    def step_of(model, optimizer):
        return descending(lambda model, x: own_weight(model(x), model).square().mean())(model, optimizer)

    expect_parts(lambda: nn.Linear(8, 8), device, "own_weight: aten::index", step_of=step_of)


# --- Around them ---


def drawing(x):
    return x * x.detach().sum().item() + torch.rand_like(x)


def looked_at(monkeypatch):
    """Gets an entry for each call that is looked at."""
    looks = []
    enter = Scout.__enter__
    monkeypatch.setattr(Scout, "__enter__", lambda self: looks.append(self) or enter(self))
    return looks


def test_a_step_that_replays_is_not_looked_at(device, monkeypatch):
    looks = looked_at(monkeypatch)
    linear = nn.Linear(8, 8).to(device)
    step = pianola.graphed(lambda x: linear(x).square().mean() if x.sum() < 1e9 else x.sum())
    for i in range(30):
        step(batch(i).to(device))
    assert step.info().signatures[0].replays > 20 and not looks


@pytest.mark.parametrize(("islands", "most"), [("marked", 0), ("auto", 3)])
def test_a_step_that_stays_eager_is_looked_at_in_a_few_calls(device, monkeypatch, islands, most):
    looks, told = looked_at(monkeypatch), []
    linear = nn.Linear(8, 8).to(device)
    step = pianola.graphed(lambda x: drawing(linear(x)), islands=islands, on_fallback=told.append)
    for i in range(30):
        step(batch(i).to(device))
        if told:
            break
    assert len(told) == 1 and len(looks) == most and i < 10
    for i in range(30):
        step(batch(i).to(device))
    assert step.info().signatures[0].state == "eager" and len(told) == 1 and len(looks) == most


def test_a_function_under_autocast(device):
    class Cast(Moe):
        def forward(self, x):
            with torch.autocast(device.type, dtype=torch.bfloat16):
                return super().forward(x.float()).float()

        def route(self, x, weights, chosen):
            return self.mixed(x, weights.float(), chosen)

        def mixed(self, x, weights, chosen):
            result = torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                (tokens,) = torch.where(chosen == number)
                result = result.index_add(0, tokens, expert(x[tokens]).float() * weights[tokens, None])
            return result

    expect_parts(network(Cast), device, "2 x Cast.mixed: aten::nonzero")


def test_a_forward_pass_without_gradients(device):
    torch.manual_seed(0)
    model = network()().to(device).eval()
    step = pianola.graphed(torch.no_grad()(lambda x: model(x)))
    for i in range(STEPS):
        x = batch(i).to(device)
        with torch.no_grad():
            assert torch.equal(step(x), model(x))
    assert step.info().signatures[0].replays >= 20 and step.info().parts[0].startswith("2 x dispatch: ")


def test_two_steps_share_a_part(device):
    """The function is itself again behind the last of them."""
    told = []
    torch.manual_seed(0)
    models = [network()().to(device) for _ in range(2)]
    steps = [pianola.graphed(lambda x, model=model: model(x).square().mean().backward(), on_fallback=told.append) for model in models]
    original = found.dispatch
    for i in range(STEPS):
        for step in steps:
            step(batch(i).to(device))
    assert all(step.info().signatures[0].replays >= 20 for step in steps) and not told
    assert found.dispatch is original


def test_what_a_part_raises_comes_out(device):
    model = nn.Sequential(nn.Linear(8, 8), Careful()).to(device)
    step = pianola.graphed(lambda x: model(x).square().mean().backward())
    for i in range(STEPS):
        step(batch(i).to(device))
    assert step.info().signatures[0].replays > 0
    with pytest.raises(ValueError, match="too large"):
        step(batch(30).to(device) + 1e6)
    step(batch(31).to(device))


class Careful(Sparse):
    def _mix(self, hidden, scores, chosen):
        if hidden.abs().max().item() > 900:
            raise ValueError("too large")
        return super()._mix(hidden, scores, chosen)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.block = nn.Linear(8, 8), Sparse()

    @pianola.graphed(on_fallback=lambda reason: None)
    def step(self, x):
        loss = self.block(self.first(x)).square().mean()
        loss.backward()
        return loss


def test_what_was_looked_at_is_freed(device):
    assert_freed(Net, device)


def by_many_values(x):
    return x * float(x.detach().repeat(1, 100).cpu().numpy().mean())


def test_many_values_that_are_copied_are_told_apart(device):
    step_of = descending(lambda model, x: by_many_values(model(x)).square().mean())
    expect_parts(lambda: nn.Linear(8, 8), device, "by_many_values: ", step_of=step_of)


def up_to_a_limit(x):
    largest = x.detach().abs().max().item()
    return x if largest > 30 else x / largest


@pytest.mark.parametrize("beyond", [{13, 14, 15}, {40, 60}], ids=["while it is observed", "in replays"])
def test_a_part_that_returns_its_argument_in_some_calls(device, beyond):
    """What is written into its result behind the call is written into the argument then."""

    def loss_of(model, x):
        hidden = model(x)
        result = up_to_a_limit(hidden)
        result.add_(1.0)
        return (result * 0.1 + hidden.square() * 0.01).mean()

    batches = [batch(i, side=500.0 if i in beyond else 0.0) for i in range(70)]
    step, _ = assert_alike(lambda: nn.Linear(8, 8), device, batches, None, descending(loss_of))
    signature = step.info().signatures[0]
    if 14 in beyond:
        assert signature.state == "eager" and "returns what it is given" in step.found.note
    else:
        assert signature.replays >= 20 and signature.misses == 2, step.found.note
