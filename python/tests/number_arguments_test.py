"""Numbers among the arguments of a graphed function that change from call to call: the programs, and what is to come of them."""

import itertools
import math

import pytest
import torch
from torch import nn

import pianola
from twins import assert_same


HERE = torch.device("cpu")


@pytest.fixture(autouse=True)
def on_the_device(device):
    global HERE
    HERE = device


def made(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).to(HERE)


def run(make, numbers, graphed=None):
    """What each call returns and leaves."""
    torch.manual_seed(0)
    function, module = make()
    function = function if graphed is None else graphed(function)
    torch.manual_seed(1)
    left = []
    for values in numbers:
        values = values if isinstance(values, tuple) else (values,)
        try:
            result = function(torch.randn(4, 6).to(HERE), *values)
        except Exception as error:
            result = (type(error), str(error))
        left.append((result, [one.detach().clone() for one in module.state_dict().values()] if module is not None else []))
    return left, function


def is_equal(one, other):
    if isinstance(one, torch.Tensor):
        return type(one) is type(other) and one.dtype == other.dtype and torch.equal(one, other) or (
            isinstance(other, torch.Tensor) and one.shape == other.shape and torch.equal(one.isnan(), other.isnan()) and torch.equal(one.nan_to_num(), other.nan_to_num()))
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(is_equal, one, other))
    return type(one) is type(other) and (one == other or one != one and other != other)


def check(make, numbers, least, **options):
    """As eager in each call, at least so many of which are replayed. @return  The graphed function."""
    numbers = list(numbers)
    told = []
    expected, _ = run(make, numbers)
    left, function = run(make, numbers, lambda one: pianola.graphed(one, on_fallback=told.append, **options))
    for i, (one, other) in enumerate(zip(left, expected)):
        assert is_equal(one, other), f"call {i}, of {numbers[i]}: {one[0]} in place of {other[0]}"
    replays = sum(one.replays for one in function.info().signatures)
    assert replays >= least, f"{replays} of {len(numbers)} calls were replayed: {told}"
    return function


def accumulation():
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, index):
        loss = model(x).square().mean() / 4
        loss.backward()
        if (index + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    return step, model


def test_every_fourth_call_steps():
    check(accumulation, range(40), 28)


def handed_on():
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(x, epoch):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return epoch, {"next": epoch + 1, "half": epoch / 2, "loss": loss.detach()}

    return train, model


def test_an_epoch_that_is_handed_on_is_no_signature():
    function = check(handed_on, range(20), 14)
    assert len([one for one in function.info().signatures if one.graphs]) == 1


def last_step():
    def sample(x, index):
        with torch.no_grad():
            mean = x * 0.9
            return mean if index == 0 else mean + torch.randn_like(x)

    return sample, None


def test_the_last_step_of_a_loop_has_a_graph_of_its_own():
    check(last_step, [i for _ in range(6) for i in reversed(range(8))], 38)


def frequencies():
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    slow = made(1)

    def update(x, global_step):
        loss = (model(x) - slow(x).detach()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if global_step % 2 == 0:
            with torch.no_grad():
                for one, other in zip(slow.parameters(), model.parameters()):
                    one.copy_(0.9 * one + 0.1 * other)
        return loss.detach()

    return update, nn.ModuleList([model, slow])


def test_a_delayed_update_as_of_td3():
    check(frequencies, range(40), 30)


def keyword():
    def step(x, *, epoch=0):
        return x * 2 if epoch < 5 else x * 3

    return lambda x, epoch: step(x, epoch=epoch), None


def test_a_keyword_is_a_number_as_well():
    torch.manual_seed(0)
    step = pianola.graphed(lambda x, *, epoch=0: x * 2 if epoch < 5 else x * 3)
    for epoch in range(20):
        x = torch.randn(3).to(HERE)
        assert torch.equal(step(x, epoch=epoch), x * 2 if epoch < 5 else x * 3)
    assert sum(one.replays for one in step.info().signatures) >= 9


# --- What needs the value ---


TABLE = [0.5, 0.25, 0.125, 4.0, 8.0]

READERS = {
    "an index of a list": lambda x, i: x * TABLE[i % 5],
    "a key": lambda x, i: x * {0: 1.5, 1: 2.5}.get(i % 2, 3.5),
    "a range": lambda x, i: [x + k for k in range(i % 3)],
    "a shape": lambda x, i: x.view(-1, (1, 2, 3)[i % 3]),
    "a length": lambda x, i: x[: i % 3 + 1],
    "a text": lambda x, i: x * (2 if f"{i % 2}" == "0" else 3),
    "math": lambda x, i: x * (1.0 if math.sqrt(i) < 3 else 2.0),
    "an int": lambda x, i: x * (2.5 if int(i / 4) < 2 else 3.5),
    "a place": lambda x, i: x[:, i % 6].clone(),
    "a number": lambda x, i: x * i,
    "a fill": lambda x, i: torch.full((3,), i, device=HERE) + x[0, 0],
    "a tensor": lambda x, i: x + torch.tensor([i, i, i, i, i, i], device=HERE),
    "an exponent": lambda x, i: x**i,
    "a type": lambda x, i: x * 2 if type(i) is int else x * 3,
    "an attribute": lambda x, i: x * i.bit_length(),
    "a sequence": lambda x, i: torch.stack([x] * (i % 2 + 1)),
    "a zero": lambda x, i: x * 2 if 1 / i > 0.2 else x * 3,
}


@pytest.mark.parametrize("name", READERS)
def test_what_depends_on_the_value_is_as_in_eager(name):
    numbers = [*range(12), *([3] * 6), *([5, 6] * 6), *range(8, 20), -1, -2, -3]
    check(lambda: (READERS[name], None), numbers, 0)


@pytest.mark.parametrize("name", READERS)
def test_each_value_may_have_a_graph_as_before(name):
    numbers = [7] * 6 + [8] * 6 + [7] * 6 + [9] * 6
    check(lambda: (READERS[name], None), numbers, 9)


@pytest.mark.parametrize("kind", ["a list", "a tensor of the CPU"])
def test_a_number_that_takes_from_a_table_and_that_a_tensor_is_made_of(kind):
    """As samplers of diffusion models do."""
    table = torch.linspace(0.9, 0.1, 21)
    factors = table.tolist() if kind == "a list" else table

    def sample(x, i):
        return (x - factors[i] ** 0.5 * torch.tensor([i] * 6, device=HERE)) / (1 - factors[i]) ** 0.5

    check(lambda: (sample, None), [i for _ in range(9) for i in range(18, -1, -3)], 32)


def test_a_guard_on_a_number_and_on_the_host():
    settings = {"sharp": False}

    def step(x, i):
        if settings["sharp"] and i > 20:
            return x * 3
        return x * 2 if i % 2 else x * 4

    graphed = pianola.graphed(step)
    for i in range(64):
        settings["sharp"] = i % 32 >= 16
        x = torch.ones(3, device=HERE)
        assert torch.equal(graphed(x, i), step(x, i))
    assert sum(one.replays for one in graphed.info().signatures) >= 30


# --- Numbers that change what they are ---


def branching(x, temperature):
    if temperature != 1.0:
        x = x + 1
    return x.relu()


@pytest.mark.parametrize(
    "numbers",
    [
        [0.5 + i / 8 for i in range(20)],
        [1.0] * 5 + [0.7, 0.8, 0.9, 0.6] * 3 + [1.0] * 3,
        [0.5, 0.6, 0.7, 0.8, 0.9, 1, 2, 3, 4, 5, 6, 7, True, 1.0, 2.0],
        [0.5, 0.6, 0.7, 0.8, 0.9, math.nan, math.inf, -math.inf, 0.0, -0.0, 0.25],
    ],
)
def test_numbers_of_all_kinds(numbers):
    check(lambda: (branching, None), numbers, 3)


def test_a_number_that_becomes_a_tensor_or_none():
    torch.manual_seed(0)
    step = pianola.graphed(lambda x, t: x * 2 if t is None else x + (1 if t > 3 else 0))
    for t in [*range(8), torch.tensor(9, device=HERE), None, *range(4, 10), torch.tensor(1, device=HERE), None]:
        x = torch.randn(3).to(HERE)
        assert torch.equal(step(x, t), x * 2 if t is None else x + (1 if t > 3 else 0))


def test_results_are_plain_numbers():
    step = pianola.graphed(lambda x, i: (x * 2, i, i + 0.5, [i // 2], i > 3))
    for i in range(12):
        result = step(torch.ones(2, device=HERE), i)
        assert [type(one) for one in (*result[1:3], *result[3], result[4])] == [int, float, int, bool]
        assert result[1:] == (i, i + 0.5, [i // 2], i > 3)
    assert sum(one.replays for one in step.info().signatures) >= 4


def test_containers_that_hold_numbers_stay_the_callers():
    def step(x, options):
        options["seen"] = True
        return x * options["scale"]

    step = pianola.graphed(step)
    for i in itertools.chain(range(6), range(6)):
        options = {"scale": i}
        assert torch.equal(step(torch.ones(2, device=HERE), options), torch.ones(2, device=HERE) * i) and options["seen"]


def test_a_division_by_zero_is_raised():
    def make():
        return lambda x, i: x * 2 if 6 / i > 1 else x * 3, None

    check(make, [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 5, 0, 7, 8, 9], 2)


def test_a_calculation_that_nobody_uses_raises_as_well():
    def make():
        def step(x, i, t):
            round(t)
            7 % i
            return x * 2

        return step, None

    check(make, [*((i, i / 2) for i in range(1, 9)), (0, 1.5), (3, math.nan), (3, math.inf), (4, 4.5)], 4)


def test_many_paths_end_in_one_signature_a_value():
    check(lambda: (lambda x, i: x * 2 if any(i == k for k in range(100)) else x, None), range(60), 0)


def test_modules_take_numbers():
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 6)

        def forward(self, x, step):
            y = self.linear(x)
            return y if step < 4 else y.relu()

    torch.manual_seed(0)
    plain = Layer().to(HERE)
    layer = Layer().to(HERE)
    layer.load_state_dict(plain.state_dict())
    layer = pianola.graphed(layer)
    for i in range(20):
        x = torch.randn(4, 6).to(HERE)
        y, expected = layer(x, i), plain(x, i)
        assert torch.equal(y, expected)
        y.sum().backward(), expected.sum().backward()
        assert torch.equal(layer.linear.weight.grad, plain.linear.weight.grad)
    assert sum(one.replays for one in layer.forward.info().signatures) >= 10


# --- Numbers that operations are given ---


USERS = {
    "mul": lambda x, t: x * t,
    "rmul": lambda x, t: t * x + 1,
    "div": lambda x, t: x / t,
    "rdiv": lambda x, t: t / (x.abs() + 1),
    "sub": lambda x, t: t - x,
    "add": lambda x, t: x + (t + 1) * 2,
    "alpha": lambda x, t: torch.add(x, x, alpha=t),
    "pow": lambda x, t: x.abs() ** t,
    "softmax": lambda x, t: (x / t).softmax(-1),
    "leaky": lambda x, t: nn.functional.leaky_relu(x, t),
    "fill": lambda x, t: torch.full((3,), t, device=HERE) + x[0, :3],
    "tensor": lambda x, t: x * torch.tensor(t, device=HERE),
    "tensors": lambda x, t: x * torch.tensor([t, t + 1, 2.5, t, -t, 7], device=HERE),
    "doubles": lambda x, t: x * torch.as_tensor([t] * 6, dtype=torch.float64, device=HERE),
    "lerp": lambda x, t: torch.lerp(x, x * 2, t),
    "clamp": lambda x, t: x.clamp(-t, t),
    "assigned": lambda x, t: assigned(x.clone(), t),
    "threshold": lambda x, t: x > t - 0.75,
    "in place": lambda x, t: x.clone().mul_(t).add_(x, alpha=1 - t),
    "twice": lambda x, t: x * t + x * (t + 0.125),
    "foreach": lambda x, t: torch._foreach_mul([x, x + 1], t),
    "attention": lambda x, t: nn.functional.scaled_dot_product_attention(x[None], x[None], x[None], scale=t),
}


def assigned(x, t):
    x[:, 1] = t
    return x


@pytest.mark.parametrize("name", USERS)
def test_a_number_that_operations_are_given_is_a_parameter_of_the_graph(name):
    numbers = [*(0.6 + i / 17 for i in range(24)), *(0.61 + i / 13 for i in range(10))]
    function = check(lambda: (USERS[name], None), numbers, 0 if name == "foreach" else 24)
    assert name == "foreach" or len([one for one in function.info().signatures if one.graphs]) == 1


@pytest.mark.parametrize("name", USERS)
def test_values_that_torch_treats_in_ways_of_their_own_are_not_given_to_a_graph_of_others(name):
    special = [0.0, 1.0, 2.0, 3.0, 0.5, -1.0, -2.0, math.inf, math.nan, -0.0]
    numbers = [0.61 + i / 17 for i in range(10)]
    check(lambda: (USERS[name], None), [*numbers, *special, *numbers, 2.0, 2.0, 2.0, 2.0, 2.0, *numbers], 10 if name != "foreach" else 0)


def trained():
    model = made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def train_step(x, temperature):
        optimizer.zero_grad()
        y = model(x)
        if temperature != 1.0:
            y = y / temperature
        loss = -y.log_softmax(-1)[:, 0].mean() + temperature * y.square().mean() / 8
        loss.backward()
        optimizer.step()
        return loss.detach(), temperature * 2

    return train_step, model


def test_a_temperature_of_a_training_step():
    numbers = [*(2.5 - i / 20 for i in range(25)), 1.0, 1.0, 1.0, 1.0, 1.0, *(0.9 - i / 50 for i in range(15)), 0.5, 0.25]
    check(trained, numbers, 34)


def clipped():
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step(x, weight, power):
        optimizer.zero_grad()
        loss = (model(x).abs() ** power).mean() * weight
        loss.backward()
        optimizer.step()
        return loss.detach()

    return train_step, model


def test_two_numbers_of_a_training_step():
    numbers = [(0.6 + i / 21, 1.3 + (i * 7 % 5) / 9) for i in range(30)]
    check(clipped, [*numbers, (0.7, 2.0), (2.0, 1.31), *numbers[:8]], 24)


def test_two_numbers_that_agreed_and_then_part():
    numbers = [(0.6 + i / 21, 0.6 + i / 21) for i in range(12)]
    check(clipped, [*numbers, *((0.6 + i / 21, 1.9 - i / 21) for i in range(12)), *numbers], 0)
    check(lambda: (lambda x, a, b: x * a + b, None), [*numbers, *((0.6 + i / 21, 1.9 - i / 21) for i in range(12)), *numbers], 20)


def test_a_number_that_a_table_gives_is_not_taken_for_the_argument():
    table = [0.1 * i for i in range(20)] + [7.0] * 20
    check(lambda: (lambda x, i: x * table[i], None), range(40), 0)
    check(lambda: (lambda x, i: x * (0.1 * i if i < 15 else 7.0), None), range(40), 10)


def test_a_number_that_is_the_same_for_the_calls_of_the_warm_up():
    check(lambda: (lambda x, i: x * (i // 10), None), range(100), 20)
    check(lambda: (lambda x, i: x + min(i, 12), None), range(40), 10)


def test_a_number_goes_from_float_to_int_and_back():
    numbers = [0.61 + i / 17 for i in range(8)]
    check(lambda: (lambda x, t: x * t, None), [*numbers, 5, 6, 7, 8, 9, 10, 11, 12, *numbers, 13, 2**70, 5.5], 14)


# --- Positions ---


def cache_of(make):
    def build():
        cache = nn.Module()
        cache.register_buffer("k", torch.zeros(4, 24, device=HERE))
        cache.register_buffer("weight", torch.randn(24, 6).to(HERE))
        return make(cache), cache

    return build


def written(cache):
    @torch.no_grad()
    def step(x, position):
        cache.k[:, position : position + 1] = x[:, :1]
        cache.k[..., position] += 1
        return cache.k.sum() + cache.weight[position] * 2

    return step


def test_an_int_gives_the_position_in_a_cache():
    function = check(cache_of(written), [i for _ in range(3) for i in range(24)], 62)
    assert len([one for one in function.info().signatures if one.graphs]) == 1


POSITIONS = {
    "select": lambda c: lambda x, i: c.weight[i] + x,
    "narrow": lambda c: lambda x, i: c.weight.narrow(0, i, 2).sum(0) + x,
    "a clone": lambda c: lambda x, i: c.weight[i].clone(),
    "a view": lambda c: lambda x, i: c.weight[i],
    "a view of views": lambda c: lambda x, i: c.weight[i : i + 2].t()[:3].unsqueeze(0) * 2,
    "negative": lambda c: lambda x, i: c.weight[-i - 1] + x,
    "of a result": lambda c: lambda x, i: (c.weight * 2)[i] + x,
    "of the input": lambda c: lambda x, i: x.repeat(1, 5)[:, i] * 2,
    "shrinks": lambda c: lambda x, i: c.weight[i : i + 8].sum(0),
    "grows": lambda c: lambda x, i: c.weight[: i + 1].sum(0),
    "a list of them": lambda c: lambda x, i: torch.stack([c.weight[i], c.weight[0]]),
    "split": lambda c: lambda x, i: c.weight[i].split(3)[1] * 2,
}


@pytest.mark.parametrize("name", POSITIONS)
def test_positions_are_as_in_eager(name):
    least = {"a view": 0, "shrinks": 10, "grows": 0, "a list of them": 0, "split": 0}.get(name, 30)
    check(cache_of(POSITIONS[name]), [i for _ in range(2) for i in range(22)], least)


def test_a_position_out_of_range_is_raised():
    check(cache_of(POSITIONS["select"]), [*range(22), 30, 5, 31, 6, 7], 18)


def test_views_that_autograd_keeps_are_right():
    def make():
        model = made()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        table = torch.randn(24, 6).to(HERE)

        def step(x, i):
            optimizer.zero_grad()
            loss = (model(x * table[i]) * table[i][:3]).square().sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step, model

    check(make, range(24), 0)


def test_a_number_that_is_read_and_one_that_is_given_are_returned():
    def make():
        model = made()

        def step(x, i):
            loss = model(x).square().mean()
            return loss.item(), i * 2, loss.item() / 4

        return step, None

    check(make, range(12), 6)
    check(lambda: (lambda x, t: x.sum().item() * t, None), [3.0] * 3 + [4.0] * 6 + [5.0] * 6, 3)


def norms(x, p):
    return x.norm(p) + torch.nn.functional.normalize(x, p=p, dim=1)


def test_functions_of_torchs_python_look_at_numbers():
    check(lambda: (norms, None), [1.5 + i / 8 for i in range(12)] + [2.0] * 5 + [math.inf] * 5, 3)


# --- What is told ---


def told(function, numbers):
    step = pianola.graphed(function)
    for number in numbers:
        step(torch.ones(4, 6, device=HERE), number)
    return step.info()


def test_what_becomes_of_a_number_is_told():
    assert told(lambda x, i: x * 2, range(9)).numbers == ["args[1] does not matter to the graph"]
    assert told(lambda x, i: x * 2 if i % 2 == 0 else x, range(12)).numbers == ["args[1] decides by (args[1] % 2) == 0"]
    assert told(lambda x, t: x * t, [0.6 + i / 17 for i in range(9)]).numbers == ["args[1] is a parameter of the graph"]
    info = told(lambda x, i: x * TABLE[i % 2], [4, 4, 4, 5, 5, 5, 5, 5, 4, 4, 4, 4])
    assert info.numbers[0].startswith("args[1] has a graph for each value of args[1] % 2, which <lambda> at number_arguments_test.py:")
    assert info.numbers[0] in " ".join(str(info).split())


def test_why_a_number_is_part_of_the_signature_is_told():
    reasons = []
    step = pianola.graphed(lambda x, i: x * TABLE[i % 5], on_fallback=reasons.append)
    for i in range(24):
        step(torch.ones(3, device=HERE), i)
    (number,) = step.info().numbers
    assert number.startswith("args[1] has a graph for each value: aten::mul.Tensor was given ")
    assert "args[1] (aten::mul.Tensor was given " in reasons[0] and "changes at every call" in reasons[0]


def test_gradients_that_a_step_uses_and_drops_are_found_by_replays():
    for last in (lambda i: (i + 1) % 4 == 0, lambda i: (i + 1) % 3 == 0):
        torch.manual_seed(0)
        weights = [nn.Parameter(torch.ones(3, device=HERE)) for _ in range(2)]

        def step(weight, x, is_last):
            (weight * x).sum().backward()
            if is_last:
                with torch.no_grad():
                    weight -= 0.1 * weight.grad
                weight.grad = None

        steps = [lambda x, last, w=weights[0]: step(w, x, last), pianola.graphed(lambda x, last, w=weights[1]: step(w, x, last))]
        for i in range(32):
            for one in steps:
                one(torch.full((3,), float(i), device=HERE), last(i))
            assert torch.equal(*weights) and (weights[0].grad is None) == (weights[1].grad is None)
            assert weights[0].grad is None or torch.equal(weights[0].grad, weights[1].grad)


PAST_THE_END = {
    "a slice": lambda t, x, i: (t[i : i + 2] * x).sum(0),
    "a slice of a slice": lambda t, x, i: t[i : i + 3][:, 1:4] * 2,
    "from the end": lambda t, x, i: t[-i - 2 : -i] + 1,
    "narrow": lambda t, x, i: t.narrow(0, i, 2) * x,
    "two": lambda t, x, i: t[i : i + 2].sum(0) + t[i] * x,
}


@pytest.mark.parametrize("name", PAST_THE_END)
def test_a_position_past_the_end_is_eagers_each_time(device, name):
    step = PAST_THE_END[name]
    graphed = pianola.graphed(lambda t, x, i: step(t, x, i))
    table, x = torch.arange(40.0, device=device).reshape(8, 5), torch.full((5,), 3.0, device=device)
    for call, i in enumerate([0, 1, 2, 3, 4, 1, 5, 2, 7, 7, 6, 7, 1, 9, 9, 2, 3]):
        results = []
        for function in (graphed, step):
            try:
                results.append(function(table, x, i).clone())
            except (RuntimeError, IndexError) as error:
                results.append(str(error))
        one, other = results
        assert one == other if isinstance(other, str) else torch.equal(one, other), f"call {call}, {i}: {one} against {other}"


def test_the_sign_of_a_zero_and_integers_that_no_double_is(device):
    graphed = pianola.graphed(lambda x, t: 1 / torch.full_like(x, t))
    for call, t in enumerate([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.0, -0.0, 0.0, 0.7]):
        assert_same(f"call {call}", graphed(torch.ones(3, device=device), t), 1 / torch.full_like(torch.ones(3, device=device), t))
    graphed = pianola.graphed(lambda x, i: x + i)
    x = torch.arange(3, device=device)
    for i in range(2**60, 2**60 + 12):
        assert_same(f"{i}", graphed(x, i), x + i)
