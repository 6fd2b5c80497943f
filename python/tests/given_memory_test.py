"""Tensors from outside of a step that it gives memory of its call: its own input, or what it made. Replays would give them nothing."""

import pytest
import torch

import pianola


def as_data(tensor, x):
    tensor.data = x


def a_view(tensor, x):
    tensor.data = x[1:]


def what_is_made(tensor, x):
    tensor.data = x * 2


def by_set(tensor, x):
    with torch.no_grad():
        tensor.set_(x * 2)


def released(loss):
    loss.backward()
    return loss


def detached(loss):
    loss.backward()
    return loss.detach()


def retained(loss):
    loss.backward(retain_graph=True)
    return loss


def outside(loss):
    return loss


def run(give, finish, is_used, device):
    """Calls of two shapes in turn. What the function told when it stayed eager."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4).to(device)
    tensor = torch.nn.Parameter(torch.zeros(3, 4, device=device))
    expected = torch.nn.Parameter(torch.zeros(3, 4, device=device))
    said = []

    def step(x):
        model.zero_grad()
        tensor.grad = None
        give(tensor, x)
        return finish(model(tensor if is_used else x).pow(2).sum())

    graphed = pianola.graphed(step, on_fallback=said.append)
    for number in range(16):
        x = torch.randn(3 + 2 * (number % 2), 4, device=device)
        loss = graphed(x)
        if finish is outside:
            loss.backward()
        del loss  # while its history lives, torch does not let the shape of a leaf change
        give(expected, x)
        assert torch.equal(tensor, expected), number
    assert not sum(one.replays for one in graphed.info().signatures)
    return said


@pytest.mark.parametrize("is_used", [False, True])
@pytest.mark.parametrize("finish", [released, detached])
@pytest.mark.parametrize("give", [as_data, a_view, what_is_made, by_set])
def test_a_step_that_keeps_it_stays_eager(give, finish, is_used, device):
    said = run(give, finish, is_used, device)
    assert len(said) == 2 and all("[PG802]" in one and "the function keeps " in one for one in said)


@pytest.mark.parametrize("is_used", [False, True])
@pytest.mark.parametrize("finish", [retained, outside])
@pytest.mark.parametrize("give", [as_data, a_view, what_is_made])
def test_so_it_does_where_a_history_may_hold_it_as_well(give, finish, is_used, device):
    said = run(give, finish, is_used, device)
    assert len(said) == 2 and all("[PG802]" in one for one in said)
    if finish is retained or give is what_is_made:
        whose = "memory that it made" if give is what_is_made else "the memory of input 0"
        assert all("gives a Float parameter of shape [" in one and f"which outlives the call, {whose}" in one for one in said)
        assert all(f"tensor.data, given_memory_test.py:{give.__code__.co_firstlineno + 1} in {give.__name__}" in one for one in said)


def test_the_place_of_its_first_use_is_told_where_nothing_else_is(device):
    tensor = torch.nn.Parameter(torch.zeros(3, 4, device=device))
    said = []

    def step(x):
        tensor.grad = None
        setattr(tensor, "da" + "ta", x * 2)
        loss = tensor.pow(2).sum()
        loss.backward(retain_graph=True)
        return loss

    graphed = pianola.graphed(step, on_fallback=said.append)
    for number in range(12):
        x = torch.randn(3 + 2 * (number % 2), 4, device=device)
        graphed(x)
        assert torch.equal(tensor, x * 2), number
    assert len(said) == 2 and all("the tensor is used first in step at " in one and "given_memory_test.py:" in one for one in said)


def attacks(model):
    """A leaf of the step's own has the input's memory, and the history of the loss leads to it."""

    def step(x):
        model.zero_grad()
        leaf = x.detach().requires_grad_()
        loss = model(leaf).pow(2).sum()
        loss.backward()
        return loss

    return step


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.twice = x * 2  # an attribute stays as long as the node
        ctx.save_for_backward(weight)
        return x * weight

    @staticmethod
    def backward(ctx, gradient):
        return None, (ctx.twice * gradient).sum(0)


def custom(model):
    def step(x):
        model.zero_grad()
        loss = Scaled.apply(x, model.bias).pow(2).sum() + model(x).sum()
        loss.backward()
        return loss

    return step


def checkpoints(model):
    def step(x):
        model.zero_grad()
        loss = torch.utils.checkpoint.checkpoint(lambda y: model(y).sin(), x, use_reentrant=False).sum()
        loss.backward()
        return loss

    return step


def returns_more(model):
    """Histories that no backward pass has gone through."""

    def step(x):
        model.zero_grad()
        y = model(x)
        loss = y.pow(2).sum()
        loss.backward()
        return loss, y, (x * model.bias).exp()

    return step


def swaps(model):
    """As FSDP gives a parameter other memory, and its own again."""

    def step(x):
        model.zero_grad()
        own = model.bias.data
        with torch.no_grad():
            scale = model.bias.mean()
        model.bias.data = own
        loss = (model(x) * scale).pow(2).sum()
        loss.backward(retain_graph=True)
        return loss

    return step


def keeps_on_context(model):
    """Contexts live as long as the history does."""

    class Masked(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y):
            ctx.mask = y > 0
            return y * ctx.mask

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.mask

    def step(x):
        model.zero_grad()
        loss = Masked.apply(model(x)).pow(2).sum()
        loss.backward()
        return loss

    return step


def hooks_on_backward(model):
    model.register_full_backward_hook(lambda module, of_inputs, of_outputs: None)

    def step(x):
        model.zero_grad()
        loss = model(x).pow(2).sum()
        loss.backward()
        return loss

    return step


@pytest.mark.parametrize("make_step", [attacks, custom, checkpoints, returns_more, swaps, keeps_on_context, hooks_on_backward])
def test_what_histories_hold_is_nothing_to_tell(make_step, device):
    torch.manual_seed(0)
    models = [torch.nn.Linear(4, 4).to(device) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    said = []
    eager, graphed = make_step(models[0]), pianola.graphed(make_step(models[1]), on_fallback=said.append)
    losses = None  # those of the call before stay while the next one runs
    for number in range(16):
        x = torch.randn(3 + 2 * (number % 2), 4, device=device)
        expected, losses = eager(x), graphed(x)
        flat = [one if type(one) is tuple else (one,) for one in (expected, losses)]
        assert all(map(torch.equal, *flat)), number
        assert all(torch.equal(one.grad, other.grad) for one, other in zip(*(model.parameters() for model in models))), number
    assert not said and sum(one.replays for one in graphed.info().signatures) >= 6


def test_a_context_of_the_caller_is_no_part_of_it(device):
    class Counts(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            def twice(y):
                ctx.calls = ctx.calls + 1
                return y * 2

            ctx.calls, graphed = 0, pianola.graphed(twice)
            for number in range(8):
                assert torch.equal(graphed(x + number), (x + number) * 2)
                assert ctx.calls == number + 1
            return x * ctx.calls

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.calls

    x = torch.randn(4, device=device, requires_grad=True)
    Counts.apply(x).sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 8))
