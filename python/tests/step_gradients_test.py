"""Gradients that a graphed step makes anew in each call: dense ones that somebody holds, and sparse ones."""

import pytest
import torch

import pianola
from twins import assert_same

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


def replays(graphed):
    return sum(one.replays for one in graphed.info().signatures)


def reasons(graphed):
    return [one.reason for one in graphed.info().signatures if one.reason]


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
