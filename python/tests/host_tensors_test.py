"""Steps of a GPU that compute with tensors of the CPU, whose values a graph cannot see: results are eager's all the same."""

import pytest
import torch

import pianola
from twins import assert_same


def calls(device, step, change, count=12):
    x, results = torch.ones(3, device=device), []
    for i in range(count):
        results.append(step(x).clone())
        change(i)
    return results


def scaled():
    scale = torch.tensor(2.0)

    def change(i):
        if i in (5, 8):
            scale.mul_(1.5)

    return lambda x: x * scale, change


def read_by_item():
    scale = torch.tensor(2.0)

    def change(i):
        if i in (6, 7):
            scale.add_(1)

    return lambda x: x * float(scale), change


def shared_with_numpy():
    numpy = pytest.importorskip("numpy")
    memory = numpy.full((), 2.0, dtype=numpy.float32)
    scale = torch.from_numpy(memory)

    def change(i):
        if i == 6:
            memory.fill(5.0)

    return lambda x: x * scale, change


def computed_on_the_host():
    table = torch.tensor([1.0, 2.0, 4.0])

    def change(i):
        if i == 7:
            table[1] = 9.0

    return lambda x: x * table.sum(), change


def counted_on_the_host():
    count = torch.zeros(())

    def step(x):
        count.add_(1)
        return x * count

    return step, lambda i: None


STEPS = [scaled, read_by_item, shared_with_numpy, computed_on_the_host, counted_on_the_host]


@pytest.mark.parametrize("make", STEPS, ids=lambda make: make.__name__)
def test_results_are_eagers_whatever_is_written_between_calls(device, make):
    expected = calls(device, *make())
    step, change = make()
    for i, (result, eager) in enumerate(zip(calls(device, pianola.graphed(step, warmup=2), change), expected)):
        assert_same(f"call {i}", result, eager)


def test_a_number_that_keeps_its_value_is_replayed(device):
    x, scale = torch.ones(3, device=device), torch.tensor(2.0)
    graphed = pianola.graphed(lambda x: x * scale, warmup=2)
    for _ in range(6):
        graphed(x)
    (signature,) = graphed.info().signatures
    assert signature.replays >= 3


@pytest.mark.parametrize("optimizer", ["Adagrad", "Rprop"])
def test_an_optimizers_count_on_the_cpu_goes_on(device, optimizer):
    def train(wrap):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 2).to(device)
        optim = getattr(torch.optim, optimizer)(model.parameters(), lr=0.01)
        x = torch.randn(8, 4, device=device)

        def step():
            optim.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optim.step()
            return loss.detach()

        step = wrap(step)
        for _ in range(8):
            step()
        return list(model.parameters()), [state["step"] for state in optim.state.values()]

    for i, (graphed, eager) in enumerate(zip(train(pianola.graphed), train(lambda step: step))):
        for one, other in zip(graphed, eager):
            assert_same(f"part {i}", one, other)


class FactoredRMS(torch.optim.Optimizer):
    """Makes its state on the CPU and moves it, as transformers' Adafactor does."""

    def __init__(self, params):
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            if not state:
                state["rows"] = torch.zeros(p.shape[:-1])
            rows = state["rows"] = state["rows"].to(p.grad)
            rows.mul_(0.9).add_(p.grad.square().mean(-1), alpha=0.1)
            p.sub_(0.1 * p.grad * (rows + 1e-8).rsqrt().unsqueeze(-1))


def test_a_state_that_the_first_call_makes_on_the_cpu_does_not_count_for_later_calls(device):
    """20,000 rows: more bytes than are compared before each replay."""

    def train(wrap):
        torch.manual_seed(0)
        weight = torch.randn(20_000, 2, device=device).requires_grad_()
        optimizer = FactoredRMS([weight])

        @wrap
        def step():
            weight.grad = None
            weight.square().sum().backward()
            optimizer.step()

        for _ in range(10):
            step()
        return step, weight.detach(), optimizer.state[weight]["rows"]

    graphed, *values = train(pianola.graphed)
    for one, other in zip(values, train(lambda step: step)[1:]):
        assert_same("state", one, other)
    assert sum(one.replays for one in graphed.info().signatures) >= 5, [one.reason for one in graphed.info().signatures]


# ---- Indices of the CPU, which torch brings to the GPU itself ----

ROWS = [0, 2, 3, 3]


def by_kept_rows():
    kept = torch.tensor(ROWS)

    def change(i):
        if i == 14:
            kept[1] = 1

    return lambda x: x[:, kept], change


def by_rows_of_a_counter():
    counter = [0]

    def change(i):
        counter[0] += 1

    return lambda x: x[:, torch.tensor([counter[0] % 4, 1])], change


def put(x):
    x = x * 1
    x[:, torch.tensor(ROWS)] = torch.tensor(7.0, device=x.device)
    return x


def gradient(x):
    weight = x.clone().requires_grad_()
    weight[:, torch.tensor(ROWS)].square().sum().backward()
    return weight.grad


def leave(i):
    pass


INDEXED = {
    "made": lambda: (lambda x: x[:, torch.tensor(ROWS)], leave),
    "computed": lambda: (lambda x: x[:, torch.arange(4) % 3], leave),
    "two": lambda: (lambda x: x[torch.tensor([0, 1]), torch.tensor([1, 2])], leave),
    "put": lambda: (put, leave),
    "backward": lambda: (gradient, leave),
    "kept": by_kept_rows,
    "of a counter": by_rows_of_a_counter,
}


@pytest.mark.parametrize("kind", INDEXED)
def test_indices_of_the_cpu(device, kind):
    results = {}
    for graphed in (True, False):
        step, change = INDEXED[kind]()
        if graphed:
            step = made = pianola.graphed(step)
        results[graphed] = []
        for i in range(24):
            x = torch.randn(3, 4, generator=torch.Generator().manual_seed(i)).to(device)
            results[graphed].append(step(x).clone())
            change(i)
    for i, (one, other) in enumerate(zip(results[True], results[False])):
        assert_same(f"call {i}", one, other)
    replays = sum(one.replays for one in made.info().signatures)
    assert replays >= (0 if kind == "of a counter" else 14), [one.reason for one in made.info().signatures]
