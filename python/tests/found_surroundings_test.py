"""What is around a call that reads, beside its arguments: where a replay of it alone would not be in that, it is no part. And what a look
does to the program around it: nothing."""

import sys
import weakref

import pianola
import torch
from found import (  # noqa: F401
    STEPS,
    Moe,
    assert_alike,
    batch,
    descending,
    deterministic,
    dispatch,
    expect_eager,
    expect_parts,
    graphs_are_faster,
    mean_square,
    network,
)
from surroundings import double_precision
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel


def inside(context):
    def loss_of(model, x):
        with context():
            return model(x).square().mean()

    return descending(loss_of)


def thirds(x, weights, chosen, experts):
    return dispatch(x, weights, chosen, experts) + torch.tensor(1 / 3).to(torch.float64).mul(3).sub(1).to(x.dtype)


def attention(x, weights, chosen, experts):
    y = dispatch(x, weights, chosen, experts)[None, None]
    return nn.functional.scaled_dot_product_attention(y, y, y)[0, 0]


def kind_of(part):
    """A block that calls a function of this module by its name."""
    code = f"class Kind(Moe):\n    def route(self, x, weights, chosen):\n        return {part.__name__}(x, weights, chosen, self.experts)\n"
    made = {}
    exec(code, globals(), made)
    return made["Kind"]


def test_settings_that_the_step_enters_around_it(device):
    expect_eager(network(kind_of(thirds)), device, "is called in a context of its own", inside(double_precision))
    expect_eager(network(kind_of(attention)), device, "is called in a context of its own", inside(lambda: sdpa_kernel(SDPBackend.MATH)))


def test_settings_of_the_whole_program(device):
    with double_precision():
        assert_alike(network(kind_of(thirds)), device, [batch(i).float() for i in range(30)], step_of=descending(lambda m, x: m.float()(x.float()).mean()))


def marking_its_result(x, weights, chosen, experts):
    y = x * weights.detach().sum().item()
    y.gain = 3.0
    return y


def marking_its_argument(x, weights, chosen, experts):
    x.gain = 3.0
    return x * weights.detach().sum().item()


class Marked(Moe):
    def forward(self, x):
        x = x * 1.0
        probabilities = self.gate(x).softmax(-1)
        self.load += probabilities.detach().mean(0)
        y = self.route(x, *probabilities.max(-1))
        return x + y * getattr(y, "gain", 1.0) * getattr(x, "gain", 1.0) + sum(expert(x) for expert in self.experts)


class MarkedResult(Marked):
    def route(self, x, weights, chosen):
        return marking_its_result(x, weights, chosen, self.experts)


class MarkedArgument(Marked):
    def route(self, x, weights, chosen):
        return marking_its_argument(x, weights, chosen, self.experts)


def test_attributes_of_tensors_that_it_sets(device):
    expect_eager(network(MarkedResult), device, "(marking_its_result at found_surroundings_test.py:")
    expect_eager(network(MarkedArgument), device, "(marking_its_argument at found_surroundings_test.py:")


def shared_variable():
    scale = 1.0

    def write(value):
        nonlocal scale
        scale = value

    def scaled(y):
        return y * scale

    return write, scaled


write_scale, scaled = shared_variable()


def scaling(x, weights, chosen, experts):
    return scaled(dispatch(x, weights, chosen, experts)) * (1 + 0 * chosen.sum().item())


def test_a_variable_of_a_closure_that_the_step_changes(device):
    def loss_of(model, x):
        write_scale(2.0)
        loss = model(x).square().mean()
        write_scale(1.0)
        return loss

    expect_eager(network(kind_of(scaling)), device, "calls a closure whose variables the step changes", descending(loss_of))


class Proxy:
    def __getattr__(self, name):
        raise KeyError(name)


proxy = Proxy()
graph_model = nn.Module()
graph_model.register_buffer("adjacency", torch.eye(4).to_sparse())


def naming_a_proxy(x, weights, chosen, experts):
    return dispatch(x, weights, chosen, experts) * (1 + 0 * chosen.sum().item()) if type(proxy) is Proxy else x


def naming_a_sparse_model(x, weights, chosen, experts):
    return dispatch(x, weights, chosen, experts) * (1 + 0 * chosen.sum().item()) if graph_model is not None else x


def test_globals_that_cannot_be_looked_at(device):
    for part in (naming_a_proxy, naming_a_sparse_model):
        assert_alike(network(kind_of(part)), device, [batch(i) for i in range(20)])


def dividing(x, depth):
    return x if depth == 0 else dividing(x / (1 + 0.01 * x.detach().abs().max().item()), depth - 1)


class Deep(nn.Module):
    def forward(self, x):
        return dividing(x, 300)


class Child(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.parent = weakref.ref(self)

    def forward(self, x):
        return through(self.parent, self.linear(x))


def through(parent, x):
    return x * x.detach().sum().item() if isinstance(parent(), Child) else x


def test_calls_are_what_they_are_while_they_are_looked_at(device):
    for kind in (Deep, Child):
        assert_alike(lambda kind=kind: nn.Sequential(nn.Linear(8, 8), kind()), device, [batch(i) for i in range(20)])


class Sealed(type):
    def __setattr__(cls, name, value):
        raise AttributeError(f"{cls.__name__} is sealed")


class Router(metaclass=Sealed):
    def scale(self, x):
        return x * x.detach().sum().item()


router = Router()


def routing(x):
    return router.scale(x)


def test_a_class_that_nothing_can_be_put_into(device):
    before = routing
    expect_parts(lambda: nn.Linear(8, 8), device, "routing", step_of=descending(lambda model, x: routing(model(x)).square().mean()))
    assert routing is before and Router.scale(router, torch.ones(2)).sum() == 4


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.prompt = nn.Parameter(torch.ones(8))

    def forward(self, x):
        x.detach().sum().item()
        return self.prompt


def test_no_hook_is_left_on_a_parameter(device):
    _, model = assert_alike(lambda: nn.Sequential(nn.Linear(8, 8), Tied()), device, [batch(i) for i in range(12)])
    assert not model[1].prompt._backward_hooks


def test_a_profiler_of_the_steps_own_goes_on(device):
    events = []

    def loss_of(model, x):
        sys.setprofile(lambda *event: events.append(event[1]))
        return model(x).square().mean()

    try:
        assert_alike(network(), device, [batch(i) for i in range(8)], step_of=descending(loss_of))
        assert sys.getprofile() is not None and events
    finally:
        sys.setprofile(None)


def test_looks_wait_until_a_profiler_is_off(device):
    torch.manual_seed(0)
    model = network()().to(device)
    step = pianola.graphed(descending(mean_square)(model, torch.optim.SGD(model.parameters(), lr=1e-2)))
    sys.setprofile(lambda *event: None)
    try:
        for i in range(10):
            step(batch(i).to(device))
    finally:
        sys.setprofile(None)
    for i in range(STEPS):
        step(batch(i).to(device))
    assert step.info().parts[0].startswith("2 x dispatch")
