"""Gradients that a graphed step makes anew in each call: dense ones that somebody holds, and sparse ones. And gradients that others
put in place between its calls."""

import pytest
import torch

import pianola
from twins import assert_same, reasons, replays

CALLS = 24
TABLE = 30


def batch(device, i):
    generator = torch.Generator().manual_seed(i)
    return torch.randint(TABLE, (8, 3), generator=generator).to(device), torch.randn(8, 4, generator=generator).to(device)


def train_both(device, make_module, step, look):
    """step(module, optimizer, x, y) is called with other batches; look(module) gives tensors of what it left. What either gives is
    compared with eager after each call. @return  What pianola.graphed made."""
    values = {}
    for graphed in (True, False):
        torch.manual_seed(3)
        module = make_module().to(device)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        call = lambda x, y: step(module, optimizer, x, y)  # noqa: E731
        if graphed:
            call = made = pianola.graphed(call)
        values[graphed] = [value for i in range(CALLS) for value in (call(*batch(device, i)), *look(module))]
    for i, (one, other) in enumerate(zip(values[True], values[False], strict=True)):
        assert_same(f"value {i}", one, other)
    return made


def test_gradients_asked_for_by_name_and_put_in_place_are_left_by_replays(device):
    def step(module, optimizer, x, y):
        loss = (module(y) - y).square().mean()
        parameters = list(module.parameters())
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
            parameter.grad = gradient
        return loss.detach()

    def look(module):
        return [one.grad.clone() for one in module.parameters()]

    graphed = train_both(device, lambda: torch.nn.Linear(4, 4), step, look)
    assert replays(graphed) > 0, reasons(graphed)


# ---- Held ----

HOLDERS = {
    "itself": lambda grad: grad,
    "data": lambda grad: grad.data,
    "detach": lambda grad: grad.detach(),
    "view": lambda grad: grad.view(-1),
    "storage": lambda grad: torch.empty(0, device=grad.device).set_(grad.untyped_storage()),
}


def dense_step(module, optimizer, x, y):
    optimizer.zero_grad()
    loss = (module(y) - y).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


@pytest.mark.parametrize("hold", HOLDERS)
def test_a_gradient_that_somebody_holds_keeps_its_values(device, hold):
    """In eager the next call makes another tensor."""
    held = []

    def look(module):
        held.append(HOLDERS[hold](module.weight.grad))
        return [one.clone() for one in held[-3:]]

    train_both(device, lambda: held.clear() or torch.nn.Linear(4, 4), dense_step, look)


def test_a_gradient_that_is_looked_at_is_held_by_nobody(device):
    def look(module):
        return [module.weight.grad.data.norm(), module.bias.grad.detach().view(-1).clone()]

    graphed = train_both(device, lambda: torch.nn.Linear(4, 4), dense_step, look)
    assert replays(graphed) >= CALLS - 4, reasons(graphed)


def test_a_graph_on_the_same_gradients_that_goes_again(device):
    """What it held is not the caller's to hold."""
    values = {}
    for graphs in (True, False):
        torch.manual_seed(3)
        module = torch.nn.Linear(4, 4).to(device)

        def renew(y):
            module.zero_grad()
            loss = module(y).square().mean()
            loss.backward()
            return loss.detach()

        def add(y):
            loss = module(y).sum()
            loss.backward()
            return loss.detach()

        both = [pianola.graphed(one) if graphs else one for one in (renew, add)]
        held, values[graphs] = [], []
        for i in range(CALLS):
            values[graphs].append(both[0](batch(device, i)[1]))
            if 6 <= i < 12:
                values[graphs].append(both[1](batch(device, i)[1]))
            if i == 12:
                if graphs:
                    both[1].reset()
                held.append(module.weight.grad.data)
            values[graphs] += [one.clone() for one in held]
    for i, (one, other) in enumerate(zip(values[True], values[False], strict=True)):
        assert_same(f"value {i}", one, other)


# ---- Sparse ----

TABLES = {
    "bag": lambda: torch.nn.EmbeddingBag(TABLE, 4, mode="sum", sparse=True),
    "embedding": lambda: torch.nn.Embedding(TABLE, 4, sparse=True),
}


def loss_of(module, x, y):
    return (module(x).reshape(8, -1, 4).sum(1) - y).square().mean()


def sparse_step(module, optimizer, x, y):
    loss = loss_of(module, x, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def growing_step(module, optimizer, x, y):
    loss = loss_of(module, x, y)
    loss.backward()
    optimizer.step()
    return loss.detach()


def parts_of(module):
    grad = module.weight.grad
    return [module.weight.detach().clone(), grad._indices().clone(), grad._values().clone(), torch.tensor(grad.is_coalesced())]


@pytest.mark.parametrize("kind", TABLES)
def test_a_step_with_sparse_gradients_stays_eager(device, kind):
    graphed = train_both(device, TABLES[kind], sparse_step, parts_of)
    assert replays(graphed) == 0 and reasons(graphed)


@pytest.mark.parametrize("kind", TABLES)
def test_sparse_gradients_that_grow_from_call_to_call(device, kind):
    assert replays(train_both(device, TABLES[kind], growing_step, parts_of)) == 0


@pytest.mark.parametrize("hold", [lambda grad: grad, lambda grad: grad._values(), lambda grad: grad._indices()])
def test_a_part_of_a_sparse_gradient_that_somebody_holds(device, hold):
    held = []

    def look(module):
        held.append(hold(module.weight.grad))
        return [one.to_dense() if one.is_sparse else one.clone() for one in held[-3:]]

    train_both(device, lambda: held.clear() or TABLES["bag"](), sparse_step, look)


def test_a_sparse_gradient_that_was_set_from_outside(device):
    """The step throws it away before it uses it."""

    def look(module):
        module.weight.grad = torch.sparse_coo_tensor(torch.zeros(1, 1, dtype=torch.long), torch.ones(1, 4), (TABLE, 4)).to(device)
        return [module.weight.detach().clone()]

    train_both(device, TABLES["embedding"], sparse_step, look)


# ---- Set from outside ----


def gan(device, graphed):
    """The generator's loss leaves gradients to the discriminator, and the other way round: each drops its own alone."""
    torch.manual_seed(4)
    generator = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)).to(device)
    discriminator = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)).to(device)
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-3)
    optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=1e-3)

    @graphed
    def train_discriminator(real, z):
        optimizer_d.zero_grad()
        loss = discriminator(generator(z)).mean() - discriminator(real).mean()
        loss.backward()
        optimizer_d.step()
        return loss

    @graphed
    def train_generator(z):
        optimizer_g.zero_grad()
        loss = -discriminator(generator(z)).mean()
        loss.backward()
        optimizer_g.step()
        return loss

    return train_discriminator, train_generator, [*generator.parameters(), *discriminator.parameters()]


def test_two_steps_that_leave_gradients_to_each_other(device):
    rounds, n_critic = 40, 2
    values = {}
    for graphed in (True, False):
        train_discriminator, train_generator, parameters = gan(device, pianola.graphed if graphed else lambda step: step)
        values[graphed] = []
        for i in range(rounds * n_critic):
            z = torch.randn(6, 3, generator=torch.Generator().manual_seed(i)).to(device)
            values[graphed].append(train_discriminator(batch(device, i)[1], z[:6]))
            if i % n_critic == 0:
                values[graphed].append(train_generator(z))
            values[graphed] += [one for p in parameters for one in (p.detach().clone(), p.grad if p.grad is None else p.grad.clone())]
        if graphed:
            assert replays(train_discriminator) >= rounds * n_critic - 5, reasons(train_discriminator)
            assert replays(train_generator) >= rounds - 5, reasons(train_generator)
    for i, (one, other) in enumerate(zip(values[True], values[False], strict=True)):
        assert_same(f"value {i}", one, other) if other is not None else None
        assert (one is None) == (other is None)


def set_gradients(module, i):
    """Others at each call; what was there lives on, with its owner."""
    for number, p in enumerate(module.parameters()):
        generator = torch.Generator().manual_seed(100 * i + number)
        p.grad = torch.randn(p.shape, generator=generator).to(p.device)


def train_with_set_gradients(device, step, set_them=set_gradients):
    """Compares what the calls return and what has become of all gradients that were set. @return  What pianola.graphed made."""
    values = {}
    for graphed in (True, False):
        torch.manual_seed(3)
        module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4)).to(device)
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
        call = lambda y: step(module, optimizer, y)  # noqa: E731
        if graphed:
            call = made = pianola.graphed(call)
        values[graphed] = []
        for i in range(CALLS):
            set_them(module, i)
            owned = [p.grad for p in module.parameters()]
            values[graphed].append(call(batch(device, i)[1]))
            values[graphed] += [*owned, *(p.grad for p in module.parameters()), *(p.detach().clone() for p in module.parameters())]
    for i, (one, other) in enumerate(zip(values[True], values[False], strict=True)):
        assert_same(f"value {i}", one, other) if other is not None else None
        assert (one is None) == (other is None), i
    return made


def accumulates(module, optimizer, y):
    (module(y) - y).square().mean().backward()
    return torch.stack([p.grad.norm() for p in module.parameters()])


def steps(module, optimizer, y):
    loss = (module(y) - y).square().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(module.parameters(), 0.5)
    optimizer.step()
    return loss.detach()


def steps_and_drops(module, optimizer, y):
    loss = steps(module, optimizer, y)
    optimizer.zero_grad()
    return loss


def zeroes_first(module, optimizer, y):
    optimizer.zero_grad(set_to_none=False)
    return steps(module, optimizer, y)


def descends(module, optimizer, y):
    """By the gradients of the first layer, which it only reads."""
    module[2](y).square().mean().backward()
    with torch.no_grad():
        for p in module[0].parameters():
            p -= 0.1 * p.grad
    return module[0].weight.sum()


def set_views_of_one_buffer(module, i):
    set_gradients(module, i)
    parameters = list(module.parameters())
    buffer = torch.cat([p.grad.view(-1) for p in parameters])
    for p, part in zip(parameters, buffer.split([p.numel() for p in parameters])):
        p.grad = part.view_as(p)


@pytest.mark.parametrize("set_them", [set_gradients, set_views_of_one_buffer])
@pytest.mark.parametrize("step", [accumulates, descends])
def test_gradients_that_others_set_at_each_call(device, step, set_them):
    graphed = train_with_set_gradients(device, step, set_them)
    assert replays(graphed) >= CALLS - 5, reasons(graphed)


def test_gradients_that_are_only_read_are_not_written(device):
    versions = []

    def set_them(module, i):
        set_gradients(module, i)
        versions.append([p.grad for p in module[0].parameters()])

    train_with_set_gradients(device, descends, set_them)
    assert all(p._version == 0 for gradients in versions for p in gradients)


def returns_gradients(module, optimizer, y):
    accumulates(module, optimizer, y)
    return module[0].weight.grad


def share_gradients(module, i):
    set_gradients(module, i)
    module[2].weight.grad = module[0].weight.grad


def share_memory_by_numpy(module, i):
    set_gradients(module, i)
    if module[0].weight.is_cpu:
        module[2].weight.grad = torch.from_numpy(module[0].weight.grad.numpy())


def leaves_an_alias(module, optimizer, y):
    loss = accumulates(module, optimizer, y)
    for p in module.parameters():
        p.grad = p.grad.detach()
    return loss


def makes_anew(module, optimizer, y):
    """From what it finds; the next call finds what this one made where nobody sets another one."""
    for p in module.parameters():
        p.grad = p.grad * 0.5
    return accumulates(module, optimizer, y)


def moves_memory(module, optimizer, y):
    for p in module.parameters():
        p.grad.set_(p.grad * 0.5)
    return accumulates(module, optimizer, y)


def set_for_a_while(module, i):
    if i < 14:
        set_gradients(module, i)


class KeepsNowAndThen(torch.optim.Optimizer):
    """Its Python runs at each replay, and may keep what p.grad is."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            state["step"] = state.get("step", 0) + 1
            p.add_(p.grad, alpha=-0.1 / state["step"])
            if state["step"] % 5 == 0:
                state["last"] = p.grad


@pytest.mark.parametrize("set_them", [set_gradients, set_for_a_while, share_gradients, share_memory_by_numpy])
@pytest.mark.parametrize("step", [accumulates, leaves_an_alias, makes_anew, moves_memory, steps, steps_and_drops, zeroes_first])
def test_gradients_that_others_set_are_as_eager_leaves_them(device, step, set_them):
    train_with_set_gradients(device, step, set_them)


def test_a_gradient_that_was_set_and_that_an_optimizer_keeps_now_and_then(device):
    values = {}
    for graphed in (True, False):
        torch.manual_seed(3)
        module = torch.nn.Linear(4, 4).to(device)
        optimizer = KeepsNowAndThen(module.parameters())
        call = lambda y: steps(module, optimizer, y)  # noqa: E731
        call = pianola.graphed(call) if graphed else call
        values[graphed] = []
        for i in range(CALLS):
            set_gradients(module, i)
            values[graphed].append(call(batch(device, i)[1]))
            values[graphed] += [optimizer.state[p]["last"].clone() for p in module.parameters() if "last" in optimizer.state[p]]
    for i, (one, other) in enumerate(zip(values[True], values[False], strict=True)):
        assert_same(f"value {i}", one, other)


def test_a_gradient_that_was_set_and_is_returned(device):
    train_with_set_gradients(device, returns_gradients)


@pytest.mark.parametrize("kind", ["negated", "of inference"])
def test_gradients_of_kinds_that_a_copy_does_not_take_along(device, kind):
    def set_them(module, i):
        set_gradients(module, i)
        for p in module[0].parameters():
            with torch.inference_mode(kind == "of inference"):
                p.grad = torch._neg_view(p.grad) if kind == "negated" else p.grad.clone()

    train_with_set_gradients(device, descends, set_them)


def test_a_gradient_that_the_step_knows_by_another_name(device):
    """What it reads there is what it has just added to."""
    known = {}

    def set_them(module, i):
        set_gradients(module, i)
        known["gradient"] = module[0].weight.grad

    def step(module, optimizer, y):
        accumulates(module, optimizer, y)
        return known["gradient"].norm()

    train_with_set_gradients(device, step, set_them)


def test_gradients_that_change_their_kind(device):
    """Set, left, and dropped, in turns."""

    def set_them(module, i):
        if i % 3 == 0:
            set_gradients(module, i)
        if i % 3 == 1:
            module.zero_grad()

    train_with_set_gradients(device, accumulates, set_them)


@pytest.mark.parametrize("sets", [True, False])
def test_a_gradient_that_is_an_input_too(device, sets):
    """From some call on: what the step reads there is what it has just added to."""
    values = {}
    for graphed in (True, False):
        torch.manual_seed(3)
        module = torch.nn.Linear(4, 4).to(device)
        set_gradients(module, 0)

        def step(y, g):
            module(y).square().mean().backward()
            return (g * 2).sum()

        call = pianola.graphed(step) if graphed else step
        values[graphed] = []
        for i in range(CALLS):
            if sets:
                set_gradients(module, i)
            other = torch.full((4, 4), float(i), device=device)
            values[graphed].append(call(batch(device, i)[1], module.weight.grad if i % 5 == 4 else other))
            values[graphed] += [p.grad.clone() for p in module.parameters()]
    for i, (one, other) in enumerate(zip(values[True], values[False], strict=True)):
        assert_same(f"value {i}", one, other)
