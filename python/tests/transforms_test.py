"""Transforms of torch.func in a step: the graph holds the operations below them."""

import pytest
import torch
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, stack_module_state, vjp, vmap

import pianola
from twins import assert_same

CALLS = 7


@pytest.fixture(autouse=True)
def any_algorithm():
    """Not every derivative has a deterministic kernel."""
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True, scope="module")
def first_of_the_process():
    """torch loads decompositions with the first vmap of a process, and a graphed call warms up anew behind it."""
    vmap(torch.sin)(torch.zeros(2, 2))


def net(device, seed=3, dropout=0.0):
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Dropout(dropout), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2)]
    return torch.nn.Sequential(*layers).to(device)


def rows(device, seed):
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(seed)).to(device)


def per_sample_gradients(device):
    model = net(device)
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters, x):
        return functional_call(model, parameters, (x.unsqueeze(0),)).square().sum()

    gradients = vmap(grad(loss), in_dims=(None, 0))
    return lambda x: gradients(parameters, x)


def an_ensemble(device):
    models = [net(device, seed) for seed in range(3)]
    parameters, buffers = stack_module_state(models)

    def one(parameters, buffers, x):
        return functional_call(models[0], (parameters, buffers), (x,))

    return lambda x: vmap(one, in_dims=(0, 0, None))(parameters, buffers, x)


def an_inner_loop(device):
    """As MAML's: gradients through a step of gradients."""
    model = net(device)
    outer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def loss(parameters, x):
        return functional_call(model, parameters, (x,)).square().mean()

    def step(x):
        outer.zero_grad()
        parameters = dict(model.named_parameters())
        gradients = grad(loss)(parameters, x[:3])
        adapted = {name: p - 0.1 * gradients[name] for name, p in parameters.items()}
        result = loss(adapted, x[3:])
        result.backward()
        outer.step()
        return result

    return step


def with_a_value(device):
    model = net(device).requires_grad_(False)
    return lambda x: vmap(grad_and_value(lambda row: model(row).sum()))(x)


def nested_vmaps(device):
    w = torch.randn(5, 4, generator=torch.Generator().manual_seed(1)).to(device)
    return lambda x: vmap(vmap(torch.dot, in_dims=(None, 0)), in_dims=(0, None))(x, w)


def second_derivatives(device):
    return lambda x: vmap(hessian(lambda row: (row.sin() * row.flip(0)).prod()))(x)


def jacobians(device):
    model = net(device).requires_grad_(False)
    return lambda x: (vmap(jacrev(model))(x), vmap(jacfwd(model))(x))


def products(device):
    def step(x):
        value, pull = vjp(torch.sin, x)
        return value, pull(torch.ones_like(x))[0], jvp(torch.tanh, (x,), (x * 2,))[1]

    return step


def chunks(device):
    model = net(device).requires_grad_(False)
    return lambda x: vmap(model, chunk_size=4)(x)


def what_draws(device):
    model = net(device, dropout=0.5)
    return lambda x: vmap(model, randomness="different")(x), lambda x: vmap(model, randomness="same")(x)


def in_place(device):
    total = torch.zeros(6, 4, device=device)

    def add(row, sums):
        sums.add_(row)
        sums[0] = row.sum()
        return sums.clone()

    def step(x):
        return vmap(add)(x, total)

    step.state = total
    return step


def reads_within(device):
    """What Python numbers and tensors from outside do in a transform."""
    scale = torch.tensor(3.0, device=device)
    return lambda x: vmap(lambda row: torch.where(row > 0, row * scale, row / 2) + torch.arange(4, device=device))(x)


STEPS = [per_sample_gradients, an_ensemble, an_inner_loop, with_a_value, nested_vmaps, second_derivatives, jacobians, products, chunks,
         in_place, reads_within]  # fmt: skip


def check(graphed, eager, device):
    for seed in range(CALLS):
        torch.manual_seed(seed)
        one = graphed(rows(device, seed))
        torch.manual_seed(seed)
        other = eager(rows(device, seed))
        for a, b in zip(torch.utils._pytree.tree_leaves(one), torch.utils._pytree.tree_leaves(other)):
            assert_same(f"call {seed}", a, b)
    replays = sum(one.replays for one in graphed.info().signatures)
    assert replays >= CALLS - 4, [one.reason for one in graphed.info().signatures]


@pytest.mark.parametrize("build", STEPS, ids=lambda build: build.__name__)
def test_a_transform_replays(device, build):
    step, eager = build(device), build(device)
    check(pianola.graphed(step), eager, device)
    if hasattr(step, "state"):
        assert_same("what it writes", step.state, eager.state)


@pytest.mark.parametrize("which", [0, 1], ids=["different", "same"])
def test_random_numbers_in_a_transform_replay(device, which):
    check(pianola.graphed(what_draws(device)[which]), what_draws(device)[which], device)


def test_a_graph_holds_a_transform(device):
    x, result = rows(device, 0), []
    graph = pianola.Graph(device)
    graph.capture(lambda: result.append(torch.func.grad(lambda y: (y**3).sum())(x)))
    for seed in range(3):
        x.copy_(rows(device, seed))
        graph.replay()
        assert_same("gradient", result[-1], torch.func.grad(lambda y: (y**3).sum())(rows(device, seed)))


def test_a_read_in_a_transform_is_refused(device):
    def step(x):
        return torch.func.grad(lambda y: (y * (1.0 if y.sum().item() > 0 else 2.0)).sum())(x)

    graphed = pianola.graphed(step)
    for seed in range(CALLS):
        assert_same(f"call {seed}", graphed(rows(device, seed)), step(rows(device, seed)))
    (signature,) = graphed.info().signatures
    assert signature.replays == 0 and "PG101" in signature.reason


def test_a_tensor_that_left_its_transform_is_refused(device):
    left = []

    def step(x):
        vmap(lambda row: left.append(row) or row.sum())(x)
        return left.pop() * 2

    graphed = pianola.graphed(step)
    for seed in range(3):
        with pytest.raises(Exception) as mine:
            graphed(rows(device, seed))
        with pytest.raises(Exception) as theirs:
            step(rows(device, seed))
        assert type(mine.value) is type(theirs.value)
        left.clear()
