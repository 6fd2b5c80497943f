"""Gradients that a graphed function clears or sets without an operation: before a backward pass that runs outside of it, or of
parameters that it does not compute with."""

import pytest
import torch

import pianola
from twins import assert_same, reasons, replays

CALLS = 12


class Pair:
    """A network that is trained, and another one whose gradients come from elsewhere."""

    def __init__(self, device):
        torch.manual_seed(3)
        self.net = torch.nn.Linear(4, 4).to(device)
        self.other = torch.nn.Linear(4, 4).to(device)
        self.parameters = list(self.net.parameters())
        self.optimizer = torch.optim.AdamW(self.net.parameters())


def batch(device, i):
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(i)).to(device)


def run_both(device, make, around, calls=CALLS, look=lambda pair: []):
    """make(pair) gives the function; around(pair, function, x, i) makes call `i`. Parameters, gradients and what look(pair) gives
    are compared with eager behind each call."""
    seen = {}
    for graphed in (True, False):
        pair = Pair(device)
        function = make(pair)
        if graphed:
            function = made = pianola.graphed(function)
        seen[graphed] = []
        for i in range(calls):
            around(pair, function, batch(device, i), i)
            seen[graphed] += look(pair)
            for parameter in (*pair.net.parameters(), *pair.other.parameters()):
                seen[graphed] += [parameter.detach().clone(), None if parameter.grad is None else parameter.grad.clone()]
    for i, (one, other) in enumerate(zip(seen[True], seen[False], strict=True)):
        assert_same(f"value {i}", one, other)
    return made


def clear_by_optimizer(pair):
    pair.optimizer.zero_grad()


def clear_by_module(pair):
    pair.net.zero_grad()


def clear_one_by_one(pair):
    for parameter in pair.net.parameters():
        parameter.grad = None


def clear_a_list(pair):
    for parameter in pair.parameters:
        parameter.grad = None


def clear_by_setattr(pair):
    for parameter in pair.net.parameters():
        setattr(parameter, "grad", None)


def clear_by_name(pair):
    pair.net.weight.grad = None
    del pair.net.bias.grad


def clearing(clear):
    """Of a pair, the function that is graphed."""

    def make(pair):
        def loss_of(x):
            clear(pair)
            return (pair.net(x) - x).square().mean()

        return loss_of

    return make


CLEARED = [clear_by_optimizer, clear_by_module, clear_one_by_one, clear_a_list, clear_by_setattr, clear_by_name]


@pytest.mark.parametrize("clear", CLEARED)
def test_a_function_may_clear_gradients_before_a_backward_pass_outside(device, clear):
    def around(pair, loss_of, x, i):
        loss_of(x).backward()
        pair.optimizer.step()

    assert replays(run_both(device, clearing(clear), around)) > 4


@pytest.mark.parametrize("clear", CLEARED)
def test_gradients_that_warm_up_calls_did_not_find_are_cleared_later(device, clear):
    def around(pair, loss_of, x, i):
        loss_of(x).backward()
        pair.optimizer.step()
        if i < 7:
            pair.optimizer.zero_grad()

    assert replays(run_both(device, clearing(clear), around)) > 2


def test_gradients_of_a_module_are_added_up_where_its_function_clears_those_of_another(device):
    def around(pair, loss_of, x, i):
        pair.other(x).square().sum().backward()
        loss_of(x).backward()
        if i % 4 == 3:
            pair.optimizer.step()
            pair.optimizer.zero_grad()

    run_both(device, clearing(lambda pair: pair.other.zero_grad()), around)


def test_gradients_of_frozen_parameters_are_cleared(device):
    """Else the optimizer would move them once more."""

    def around(pair, loss_of, x, i):
        pair.net.bias.requires_grad_(i // 6 % 2 == 0)
        loss_of(x).backward()
        pair.optimizer.step()

    assert replays(run_both(device, clearing(clear_by_optimizer), around, calls=30)) > 12


def test_a_function_whose_gradients_are_there_now_and_then_is_replayed(device):
    def around(pair, loss_of, x, i):
        loss = loss_of(x)
        if i % 5 != 1 and i % 3 != 2:
            loss.backward()
            pair.optimizer.step()

    assert replays(run_both(device, clearing(clear_by_module), around, calls=30)) > 24
    assert replays(run_both(device, clearing(clear_one_by_one), around, calls=40)) > 24


def test_a_branch_that_is_not_taken_costs_no_replays(device):
    def make(pair):
        pair.resets = False

        def loss_of(x):
            if pair.resets:
                for parameter in pair.net.parameters():
                    parameter.grad = None
            return (pair.net(x) - x).square().mean()

        return loss_of

    def around(pair, loss_of, x, i):
        loss_of(x).backward()
        if i % 4 == 3:
            pair.optimizer.step()
            pair.optimizer.zero_grad()

    assert replays(run_both(device, make, around, calls=40)) > 24


def test_a_function_that_clears_the_gradient_of_its_input_stays_eager(device):
    image = torch.randn(8, 4).to(device).requires_grad_()

    def loss_of(x):
        x.grad = None
        return x.square().mean()

    made = pianola.graphed(loss_of)
    for _ in range(CALLS):
        made(image).backward()
        assert_same("gradient", image.grad, image.detach() * 2 / image.numel())
    assert replays(made) == 0
    assert "the function drops the gradient of input 0; a replay works on a copy" in reasons(made)[0]


def test_a_function_that_sets_the_gradient_of_another_parameter_each_time_stays_eager(device):
    def make(pair):
        pair.made = []

        def loss_of(x):
            parameter = pair.made[-1]
            parameter.grad = pair.given
            return (pair.net(x) - x).square().mean()

        return loss_of

    def around(pair, loss_of, x, i):
        pair.made.append(torch.nn.Parameter(torch.zeros(4, device=device)))
        pair.given = torch.full((4,), float(i), device=device)
        loss_of(x)
        assert pair.made[-1].grad is pair.given

    made = run_both(device, make, around)
    assert replays(made) == 0, reasons(made)


@pytest.mark.parametrize("clears", [True, False])
def test_a_function_that_returns_a_gradient_stays_eager(device, clears):
    def make(pair):
        def loss_of(x):
            found = pair.net.weight.grad
            if clears:
                pair.optimizer.zero_grad()
            return (pair.net(x) - x).square().mean(), x if found is None else found

        return loss_of

    def around(pair, loss_of, x, i):
        loss, pair.found = loss_of(x)
        pair.found = pair.found.clone()
        pair.optimizer.zero_grad()
        loss.backward()
        pair.optimizer.step()

    made = run_both(device, make, around, look=lambda pair: [pair.found])
    assert replays(made) == 0
    assert "result 1 is the gradient of a parameter, which a replay would not find" in reasons(made)[0]


def test_gradients_survive_a_capture_that_fails(device):
    def make(pair):
        def loss_of(x):
            norm = pair.net.weight.grad.norm()
            pair.optimizer.zero_grad()
            return (pair.net(x) - x).square().mean(), norm

        return loss_of

    def around(pair, loss_of, x, i):
        if i == 0:
            pair.kept = []
            pair.net(x).sum().backward()
        pair.kept.append(pair.net.weight.grad)  # so that no read of it looks like one of a tensor that is gone
        loss, pair.norm = loss_of(x)
        loss.backward()
        pair.optimizer.step()

    run_both(device, make, around, look=lambda pair: [pair.norm])


# ---- Of parameters that a step does not compute with ----


def clear_others(pair):
    pair.other.zero_grad()


def drop_others(pair):
    for parameter in pair.other.parameters():
        parameter.grad = None


def give_to_others(pair):
    pair.other.weight.grad = pair.net.weight.grad


@pytest.mark.parametrize("change", [clear_others, drop_others, give_to_others])
def test_a_step_changes_gradients_of_parameters_that_it_does_not_compute_with(device, change):
    def make(pair):
        def step(x):
            change(pair)
            pair.net.zero_grad()
            loss = (pair.net(x) - x).square().mean()
            loss.backward()
            return loss.detach()

        return step

    def around(pair, step, x, i):
        pair.other(x).square().sum().backward()
        step(x)

    made = run_both(device, make, around)
    assert change is give_to_others or replays(made) > 4, reasons(made)


def test_a_function_that_sets_a_gradient_stays_eager(device):
    def make(pair):
        def loss_of(x):
            pair.net.weight.grad = pair.other.weight.grad
            return (pair.net(x) - x).square().mean()

        return loss_of

    def around(pair, loss_of, x, i):
        pair.other.zero_grad()
        pair.other(x).square().sum().backward()
        loss_of(x)

    made = run_both(device, make, around)
    assert replays(made) == 0
    assert "the function sets the gradient of a Float tensor of shape [4, 4]" in reasons(made)[0]
