"""@pianola.graphed: functions, methods and modules that capture their own calls."""

import dataclasses
import gc
import logging
import sys
import types
import weakref

import pytest
import torch

import pianola
from twins import MLP, ConvNet, assert_same, assert_same_state, batches, run_both, twins


def state_of(graphed):
    return [(one.state, one.kind) for one in graphed.info().signatures]


def test_inference_is_captured_after_the_warm_up_calls(device):
    model = MLP().to(device).eval()
    reference = [p.clone() for p in model.parameters()]

    @pianola.graphed
    def infer(x):
        return model(x)

    with torch.no_grad():
        for i, x in enumerate(batches(6, (8, 16), device)):
            assert_same("output", infer(x), model(x))
            assert state_of(infer) == [("captured", "inference") if i >= 3 else ("warming up", "undecided" if i < 2 else "inference")] or i < 3
    assert infer.info().signatures[0].replays == 3
    for p, before in zip(model.parameters(), reference):
        assert_same("parameter", p, before)


def test_each_signature_has_its_own_graph_and_results_stay_valid(device):
    model = MLP().to(device).eval()
    infer = pianola.graphed(lambda x: model(x), warmup=1)
    with torch.no_grad():
        kept = []
        for _ in range(3):
            for rows in (2, 4, 8):
                x = torch.randn(rows, 16, device=device)
                kept.append((infer(x), model(x)))
        for one, other in kept:
            assert_same("output", one, other)
    assert [one.state for one in infer.info().signatures] == ["captured"] * 3


def test_the_least_recently_used_signature_is_evicted(device):
    f = pianola.graphed(lambda x: x * 2, warmup=1, capacity=2)
    for rows in (1, 2, 3):
        for _ in range(3):
            x = torch.randn(rows, device=device)
            assert_same("result", f(x), x * 2)
    info = f.info()
    assert info.evictions == 1 and sum(one.state == "captured" for one in info.signatures) == 2
    x = torch.randn(1, device=device)
    assert_same("result", f(x), x * 2)


def test_training_through_autograd_is_that_of_eager(device):
    eager, graphed = twins(ConvNet(), device)
    model = pianola.graphed(graphed)
    assert model is graphed
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (eager, graphed)]
    for step in range(8):
        for m, optimizer in zip((eager, graphed), optimizers):
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            for x in batches(2, (4, 3, 8, 8), device, seed=step):
                m(x).square().mean().backward()
            optimizer.step()
        assert_same_state(eager, graphed)
    assert ("captured", "autograd") in state_of(graphed.forward)


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_a_whole_training_step_is_that_of_eager(device, set_to_none, kind):
    eager, graphed = twins(MLP(dropout=0.2), device)

    def optimizer_of(model):
        if kind == "sgd":
            return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        capturable = dict(capturable=True) if device.type == "cuda" else {}
        return torch.optim.Adam(model.parameters(), lr=1e-2, fused=True, **capturable)

    optimizers = [optimizer_of(eager), optimizer_of(graphed)]

    def step(model, optimizer, x, y):
        optimizer.zero_grad(set_to_none=set_to_none)
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    @pianola.graphed
    def train(x, y):
        return step(graphed, optimizers[1], x, y)

    for x, y in zip(batches(20, (8, 16), device), batches(20, (8, 16), device, seed=2)):
        one, other = run_both(device, lambda: step(eager, optimizers[0], x, y), lambda: train(x, y))
        assert_same("loss", one.detach(), other.detach())
        assert_same_state(eager, graphed)
    assert state_of(train) == [("captured", "step")]
    info = train.info().signatures[0]
    assert (info.replays, info.recaptures, info.eager_calls) == (17, 0, 3)


def replays_as_eager(device, make, calls=10, shape=(3, 4)):
    """Runs one function of `make` eagerly and one graphed; all but the warm-up calls must have been replayed."""
    eager, graphed = make(), pianola.graphed(make())
    for i, x in enumerate(batches(calls, shape, device)):
        assert_same(f"call {i}", graphed(x), eager(x))
    info = graphed.info().signatures[0]
    assert (info.state, info.replays) == ("captured", calls - 3), info.reason


def shifted_tokens(device):
    def step(x):
        ids = torch.zeros(3, 4, dtype=torch.long, device=device)
        ids[..., 0] = 7
        return x + ids

    return lambda: step


def masked_slice(device):
    def step(x):
        mask = torch.ones(3, 4, device=device)
        mask[:, :2] = 0
        return x * mask

    return lambda: step


def masked_values(device):
    def step(x):
        y = x * 2
        y[y > 0] = 0.5
        y[y.lt(-1)] = -1
        return y

    return lambda: step


def with_gradient(device):
    def make():
        weight = torch.nn.Parameter(torch.ones(4, device=device))

        def step(x):
            weight.grad = None
            y = weight * x
            y[:, 1:] = 0.25
            y.square().sum().backward()
            with torch.no_grad():
                weight.sub_(weight.grad, alpha=0.1)
            return weight.detach().clone()

        return step

    return make


ASSIGNMENTS = [shifted_tokens, masked_slice, masked_values, with_gradient]


@pytest.mark.parametrize("make", ASSIGNMENTS, ids=lambda make: make.__name__)
def test_numbers_assigned_by_index_are_replayed(device, make):
    replays_as_eager(device, make(device))


def test_a_number_assigned_by_index_may_change(device):
    number = 1.0

    @pianola.graphed
    def step(x):
        y = x * 2
        y[..., 0] = number
        y[y > 0] = number + 1
        return y

    for i, x in enumerate(batches(12, (3, 4), device)):
        number = 1.0 if i < 6 else 2.0
        expected = x * 2
        expected[..., 0] = number
        expected = torch.where(expected > 0, number + 1, expected)
        assert_same(f"call {i}", step(x), expected)
    assert sum(one.replays for one in step.info().signatures) > 2


def test_memory_of_numpys_that_the_step_looks_at_is_no_number(device):
    numpy = pytest.importorskip("numpy")
    memory = numpy.full((), 2.0, dtype=numpy.float32)

    def read():
        return torch.from_numpy(memory)

    @pianola.graphed
    def step(x):
        y = x * 2
        y[..., 0] = read()
        return y * read()

    for i, x in enumerate(batches(10, (3, 4), device)):
        memory.fill(2.0 if i < 6 else 3.0)
        expected = x * 2
        expected[..., 0] = float(memory)
        assert_same(f"call {i}", step(x), expected * float(memory))


def test_parameters_that_hooks_on_saved_tensors_give_back_are_known(device):
    def make():
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 1), torch.nn.BatchNorm2d(4)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        def step(x):
            optimizer.zero_grad()
            with torch.autograd.graph.saved_tensors_hooks(lambda kept: kept, lambda kept: kept):
                loss = model(x).square().sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    replays_as_eager(device, make, shape=(2, 1, 4, 4))


def test_a_checkpoint_without_reentry_is_replayed(device):
    from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

    def make():
        torch.manual_seed(1)
        first, second = torch.nn.Conv2d(1, 4, 1).to(device), torch.nn.Conv2d(4, 2, 1).to(device)
        optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.01)

        def step(x):
            optimizer.zero_grad()
            with set_checkpoint_early_stop(False):
                loss = second(checkpoint(lambda y: first(y).relu(), x, use_reentrant=False)).square().sum()
                loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    replays_as_eager(device, make, shape=(2, 1, 4, 4))


@pytest.mark.parametrize("is_dropped", [False, True])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_checkpoint_whose_backward_pass_comes_later_is_replayed(requires_grad, is_dropped, device):
    from torch.utils.checkpoint import checkpoint

    eager, layer = twins(torch.nn.Linear(4, 4), device)
    told = []
    graphed = pianola.graphed(lambda x: checkpoint(lambda y: layer(y).relu(), x, use_reentrant=False).sin(), on_fallback=told.append)
    for _ in range(10):
        inputs = [torch.randn(3, 4, device=device)]
        inputs.append(inputs[0].clone())
        result = graphed(inputs[0].requires_grad_(requires_grad))
        expected = eager(inputs[1].requires_grad_(requires_grad)).relu().sin()
        assert torch.equal(result, expected)
        result.sum().backward(), expected.sum().backward()
        if is_dropped:
            del result, expected
        if requires_grad:
            assert torch.equal(inputs[0].grad, inputs[1].grad)
    assert all(map(torch.equal, (p.grad for p in layer.parameters()), (p.grad for p in eager.parameters())))
    assert sum(one.replays for one in graphed.info().signatures) >= 5 and not told


def test_a_learning_rate_that_changes_is_seen(device):
    eager, graphed = twins(MLP(), device)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (eager, graphed)]
    optimizer = optimizers[1]

    def step(model, optimizer, x):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    @pianola.graphed(warmup=1)
    def train(x):
        optimizer.zero_grad()
        graphed(x).square().mean().backward()
        optimizer.step()

    for i, x in enumerate(batches(9, (8, 16), device)):
        for one in optimizers:
            one.param_groups[0]["lr"] = 0.1 / (1 + i // 3)
        step(eager, optimizers[0], x)
        train(x)
        assert_same_state(eager, graphed)
    replays = sum(one.replays for one in train.info().signatures)
    assert replays == 7  # a rate is a number of the graph once it has changed


def test_an_optimizer_of_ones_own_is_captured(device):
    """Its code reads entries of parameter groups which torch's code reads as a whole."""

    class Plain(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {"lr": 0.1})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.add_(parameter.grad, alpha=-group["lr"])

    eager, other = twins(MLP(), device)
    optimizers = [Plain(model.parameters()) for model in (eager, other)]

    def step_of(model, optimizer):
        def step(x):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        return step

    step, train = step_of(eager, optimizers[0]), pianola.graphed(step_of(other, optimizers[1]))
    for i, x in enumerate(batches(12, (8, 16), device)):
        for one in optimizers:
            one.param_groups[0]["lr"] = 0.1 if i < 6 else 0.05
        step(x)
        train(x)
        assert_same_state(eager, other)
    assert [one.replays for one in train.info().signatures] == [3, 3]


def test_values_of_the_closure_are_seen(device):
    scale = 2.0
    settings = types.SimpleNamespace(shift=1.0)

    @pianola.graphed(warmup=1)
    def f(x):
        return x * scale + settings.shift

    x = torch.ones(4, device=device)
    for scale in (2.0, 3.0, 2.0):
        for settings.shift in (1.0, 5.0):
            for _ in range(3):
                assert_same("result", f(x), x * scale + settings.shift)


def test_training_flags_of_a_module_that_a_function_calls_are_seen(device):
    model = MLP(dropout=0.5).to(device)

    @pianola.graphed(warmup=1)
    def f(x):
        return model(x)

    x = torch.randn(8, 16, device=device)
    with torch.no_grad():
        for training in (True, False, True, False):
            model.train(training)
            for _ in range(3):
                one, other = run_both(device, lambda: model(x), lambda: f(x))
                assert_same("output", one, other)


def test_arguments_that_are_no_tensors_belong_to_the_signature(device):
    @pianola.graphed(warmup=1)
    def f(x, *, factor, options=None):
        return {"y": [x * factor], "options": options}

    x = torch.ones(4, device=device)
    for factor in (2, 3.0, 2):
        for _ in range(3):
            result = f(x, factor=factor, options=("a", None))
            assert_same("result", result["y"][0], x * factor)
            assert result["options"] == ("a", None)
    assert len(f.info().signatures) == 2


def assert_alike(result, expected):
    assert type(result) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert_same("result", result, expected)
    elif isinstance(expected, dict):
        assert list(map(repr, result)) == list(map(repr, expected))
        for key, value in expected.items():
            assert_alike(result[key], value)
    elif isinstance(expected, (tuple, list)):
        assert len(result) == len(expected)
        for one, other in zip(result, expected):
            assert_alike(one, other)
    else:
        assert repr(result) == repr(expected)


CALLS = [
    ((2,), {}),
    ((2.0,), {}),
    ((True,), {}),
    ((1,), {}),
    ((0.0,), {}),
    ((-0.0,), {}),
    ((2,), {"flag": False}),
    ((2,), {"flag": 0}),
    ((2,), {"names": ["a"]}),
    ((2,), {"names": ("a",)}),
    ((2,), {"names": {"a": 1}}),
    ((2,), {"names": {1: "a"}}),
    ((2,), {"names": ["a"], "flag": False}),
]


# More than are known at once.
def test_replayed_calls_are_told_apart_by_all_of_their_arguments(device):
    def step(x, scale, *, names=(), flag=True):
        y = x * scale
        return {"y": y, 3: (x, [y + len(names), flag], ()), "rest": [scale, names, None, {}]}

    graphed = pianola.graphed(step, warmup=1, capacity=len(CALLS))
    for i in range(6):
        for args, kwargs in CALLS[i:] + CALLS[:i]:
            x = torch.randn(4, device=device)
            for _ in range(2):  # the second time it is the call that was just made
                assert_alike(graphed(x, *args, **kwargs), step(x, *args, **kwargs))
    known = graphed.info().signatures
    assert len(known) == len(CALLS) and all(one.state == "captured" and one.replays >= 8 for one in known)
    x = torch.randn(4, device=device)
    graphed(x, 2, flag=False, names=["a"])  # in another order
    assert len(graphed.info().signatures) == len(CALLS)


def test_a_replayed_call_keeps_nothing_of_its_arguments(device):
    step = pianola.graphed(lambda pair, name, options: pair[0] + pair[1] + len(options), warmup=1)
    pair = [torch.randn(4, device=device), torch.randn(4, device=device)]
    name, options = "".join(["a", "name"]), {"k" + str(1): 2}

    def counts():
        return [sys.getrefcount(one) for one in (pair, *pair, name, options, *options)]

    for _ in range(5):
        step(pair, name, options)
    before = counts()
    for _ in range(100):
        step(pair, name, options)
    assert counts() == before and step.info().signatures[0].replays > 100
    tensors = [weakref.ref(tensor) for tensor in pair]
    del pair
    assert all(tensor() is None for tensor in tensors)


def test_values_that_come_back_are_seen_by_calls_that_are_known(device):
    """Replays of two states that take turns, each known from its last one."""
    settings = types.SimpleNamespace(scale=2.0)
    step = pianola.graphed(lambda x: x * settings.scale, warmup=1)
    x = torch.randn(4, device=device)
    for i in range(40):
        settings.scale = (2.0, 3.0)[i // 3 % 2]
        assert_same("result", step(x), x * settings.scale)
    assert [one.state for one in step.info().signatures] == ["captured"] * 2


def test_parameters_that_are_replaced_are_captured_anew(device):
    model = MLP().to(device)
    f = pianola.graphed(lambda x: model(x), warmup=1)
    x = torch.randn(8, 16, device=device)
    with torch.no_grad():
        for _ in range(3):
            for _ in range(3):
                assert_same("output", f(x), model(x))
            model.layers[0].weight = torch.nn.Parameter(torch.randn(16, 16, device=device))
        model.layers[1].weight.data = torch.randn(16, 16, device=device)
        for _ in range(3):
            assert_same("output", f(x), model(x))


def test_parameters_that_move_within_one_buffer_are_captured_anew(device):
    """As averaged weights are swapped in: the memory is the same block, another place of it."""
    model, buffer = torch.nn.Linear(4, 4, bias=False).to(device), torch.randn(2, 4, 4, device=device)
    f = pianola.graphed(lambda x: model(x), warmup=1)
    x = torch.randn(8, 4, device=device)
    for row in (0, 0, 0, 1, 1, 0):
        model.weight.data = buffer[row]
        assert_same(f"output with row {row}", f(x), model(x))


def test_what_cannot_be_captured_runs_eagerly_and_says_why_once(device, caplog):
    @pianola.graphed(warmup=1, islands="marked")
    def f(x):
        return x * (2 if x.sum().item() > 0 else 3)

    with caplog.at_level(logging.WARNING, logger="pianola"):
        for value in (1.0, -1.0, 1.0, -1.0):
            x = torch.full((4,), value, device=device)
            assert_same("result", f(x), x * (2 if value > 0 else 3))
    assert len(caplog.records) == 1
    message = caplog.records[0].getMessage()
    assert "runs eagerly" in message and "host" in message and "f" in message
    assert f.info().signatures[0].state == "eager" and "host" in f.info().signatures[0].reason


def test_the_reason_can_be_taken_instead_of_logged(device):
    reasons = []
    f = pianola.graphed(lambda x: x.tolist(), warmup=1, on_fallback=reasons.append)
    for _ in range(3):
        assert f(torch.ones(2, device=device)) == [1.0, 1.0]
    assert len(reasons) == 1


def test_exceptions_of_the_function_come_out_unchanged(device):
    class Mine(Exception):
        pass

    fail = {"now": False}

    @pianola.graphed(warmup=1)
    def f(x):
        if fail["now"]:
            raise Mine("here")
        return x + 1

    x = torch.ones(2, device=device)
    f(x)
    fail["now"] = True
    with pytest.raises(Mine, match="here") as raised:
        f(x)
    assert raised.traceback[-1].name == "f"


def test_a_bad_batch_in_the_call_that_is_captured_is_no_reason_to_stay_eager():
    embedding = torch.nn.Embedding(10, 4)
    optimizer = torch.optim.AdamW(embedding.parameters())
    reasons = []

    @pianola.graphed(on_fallback=reasons.append)
    def step(tokens):
        optimizer.zero_grad()
        loss = embedding(tokens).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    for i in range(12):
        tokens = torch.arange(8)
        if i == 3:  # behind three calls of warm-up
            with pytest.raises(IndexError, match="out of range"):
                step(tokens + 99)
        step(tokens)
    assert not reasons and step.info().signatures[0].replays >= 6


def test_two_forwards_before_a_backward(device):
    eager, graphed = twins(MLP(), device)
    pianola.graphed(graphed, warmup=1)
    for x in batches(5, (8, 16), device):
        for model in (eager, graphed):
            model.zero_grad()
            (model(x) * model(x + 1)).sum().backward()
        assert_same_state(eager, graphed)


def test_an_input_that_is_written_in_place(device):
    @pianola.graphed(warmup=1)
    def f(x):
        x.add_(1)
        return x * 2

    for _ in range(4):
        x = torch.zeros(4, device=device)
        assert f(x).tolist() == [2.0] * 4 and x.tolist() == [1.0] * 4


def test_a_method_has_graphs_per_object_and_does_not_keep_it_alive(device):
    import weakref

    class Scaler:
        def __init__(self, factor):
            self.factor = factor

        @pianola.graphed(warmup=1)
        def scale(self, x):
            return x * self.factor

    x = torch.ones(4, device=device)
    two, three = Scaler(2.0), Scaler(3.0)
    for _ in range(4):
        assert_same("two", two.scale(x), x * 2)
        assert_same("three", three.scale(x), x * 3)
    two.factor = 5.0
    for _ in range(3):
        assert_same("five", two.scale(x), x * 5)
    gone = weakref.ref(two)
    del two
    gc.collect()
    assert gone() is None


def test_a_method_of_a_module(device):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = MLP()

        @pianola.graphed(warmup=1)
        def forward(self, x):
            return self.inner(x)

    eager, graphed = MLP().to(device), Net().to(device)
    graphed.inner.load_state_dict(eager.state_dict())
    for x in batches(4, (8, 16), device):
        for model in (eager, graphed):
            model.zero_grad()
            model(x).sum().backward()
        assert_same_state(eager, graphed.inner)
    assert graphed.forward.info().signatures[0].replays == 3


def test_a_graphed_function_inside_a_capture_becomes_part_of_it(device):
    f = pianola.graphed(lambda x: x * 2, warmup=1)
    x = torch.ones(4, device=device)
    for _ in range(3):
        f(x)
    results = {}
    graph = pianola.Graph(device)
    graph.capture(lambda: results.update(y=f(x) + 1))
    x.fill_(4)
    graph.replay()
    assert results["y"].tolist() == [9.0] * 4


@pytest.mark.parametrize(
    "use, text",
    [
        (lambda: pianola.graphed(MLP), "graphed was put on the class MLP"),
        (lambda: pianola.graphed(3), "a int cannot be graphed"),
        (lambda: pianola.graphed(torch.relu, warmup=0), "warmup must be 1 or more"),
        (lambda: pianola.graphed(torch.relu, capacity=0), "capacity must be 1 or more"),
        (lambda: pianola.graphed(torch.relu, outputs="x"), "outputs must be one of"),
        (lambda: pianola.graphed(torch.relu, pool=(0, 1)), "graphed needs a pianola.GraphPool"),
        (lambda: pianola.graphed(pianola.graphed(MLP())), "graphed already"),
    ],
)
def test_arguments_that_do_not_fit_are_named(use, text):
    with pytest.raises(pianola.UsageError, match=text):
        use()


def test_reset_starts_over_and_gives_a_module_its_forward_back(device):
    f = pianola.graphed(lambda x: x + 1, warmup=1)
    x = torch.ones(2, device=device)
    for _ in range(3):
        f(x)
    f.reset()
    assert not f.info().signatures
    assert f(x).tolist() == [2.0, 2.0]
    model = pianola.graphed(MLP().to(device))
    model.forward.reset()
    assert "forward" not in model.__dict__


def test_the_function_keeps_its_name_and_text():
    @pianola.graphed
    def well_known(x):
        """Says what it does."""
        return x

    assert well_known.__name__ == "well_known" and well_known.__doc__ == "Says what it does."


def test_the_report_shows_every_signature(device):
    f = pianola.graphed(lambda x: x + 1, warmup=1)
    for rows in (2, 3):
        for _ in range(3):
            f(torch.ones(rows, device=device))
    text = str(f.info())
    assert "[2]" in text and "[3]" in text and "captured" in text


def test_a_tensor_that_the_function_replaces_runs_eagerly(device):
    class Recurrent:
        state = torch.zeros(2, device=device)

    @pianola.graphed(warmup=1, on_fallback=lambda reason: None)
    def f(x):
        Recurrent.state = Recurrent.state * 0.5 + x
        return Recurrent.state * 1

    expected = torch.zeros(2, device=device)
    for i in range(6):
        x = torch.full((2,), float(i), device=device)
        expected = expected * 0.5 + x
        assert_same("state", f(x), expected)
    assert f.info().signatures[0].state == "eager"


def test_a_reason_is_a_few_lines(device):
    reasons = []
    f = pianola.graphed(lambda x: x * x.sum().item(), warmup=1, islands="marked", on_fallback=reasons.append)
    for _ in range(2):
        f(torch.ones(2, device=device))
    assert len(reasons) == 1 and len(reasons[0].splitlines()) <= 6 and "::Error" not in reasons[0]


def test_an_interrupt_during_the_capture_comes_out(device):
    interrupted = {"now": False}

    @pianola.graphed(warmup=1)
    def f(x):
        if interrupted["now"]:
            raise KeyboardInterrupt
        return x + 1

    x = torch.ones(2, device=device)
    f(x)
    interrupted["now"] = True
    with pytest.raises(KeyboardInterrupt):
        f(x)
    interrupted["now"] = False
    assert f(x).tolist() == [2.0, 2.0]


def test_script_modules_are_graphed_and_watched(device):
    class Halves(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = MLP(layers=1)

        def forward(self, x):
            return self.inner(x) * 0.5

    script = torch.jit.trace(Halves().to(device).eval(), torch.randn(8, 16, device=device))
    f = pianola.graphed(lambda x: script(x), warmup=1)
    with torch.no_grad():
        for x in batches(5, (8, 16), device):
            assert_same("function", f(x), script(x))
    assert f.info().signatures[0].replays >= 3  # the executor may run other operations in its first call


def test_a_traced_module_is_patched_and_restored(device):
    x = torch.randn(8, 16, device=device)
    script = torch.jit.trace(MLP().to(device).eval(), x)
    expected = script(x)
    for graph_it in (lambda: pianola.make_graphed_callables(script, (x,)), lambda: pianola.graphed(script, warmup=1)):
        graph_it()
        with pytest.raises(pianola.UsageError, match="graphed already"):
            graph_it()
        forward = script.forward
        for _ in range(3):
            assert_same("output", script(x), expected)
        assert "graphs" in str(forward.info())
        forward.reset()
        assert_same("output", script(x), expected)


def test_each_object_has_graphs_of_its_own_however_equal(device):
    @dataclasses.dataclass(frozen=True)
    class Scaled:
        scale: torch.Tensor = dataclasses.field(compare=False)

        @pianola.graphed
        def step(self, x):
            return x * self.scale

    ones = [Scaled(torch.full((2,), scale, device=device)) for scale in (2.0, 3.0)]
    assert ones[0] == ones[1]
    x = torch.ones(2, device=device)
    for _ in range(6):
        assert [one.step(x).tolist() for one in ones] == [[2.0, 2.0], [3.0, 3.0]]
    assert ones[0].step is not ones[1].step
    functions = [weakref.ref(one.step) for one in ones]
    ones.clear()
    gc.collect()
    assert [function() for function in functions] == [None, None]


def test_calls_that_find_something_new_each_time_run_eagerly_until_one_comes_back(device):
    """To observe them costs many times what they take."""
    told = []
    graphed = pianola.graphed(lambda x, settings: x.sum() + len(settings["name"]), on_fallback=told.append)
    x = torch.ones(3, device=device)
    for i in range(60):
        assert graphed(x, {"name": f"number {i}"}).item() == 3 + len(f"number {i}")
    assert len(told) == 1 and "nothing is captured, because" in told[0], told
    for _ in range(6):
        graphed(x, {"name": "the same"})
    assert sum(one.replays for one in graphed.info().signatures) > 0


def test_the_first_replay_is_told_in_one_line(device, caplog):
    model = MLP().to(device)

    @pianola.graphed
    def predict(x):
        with torch.no_grad():
            return model(x)

    with caplog.at_level("INFO", logger="pianola"):
        for _ in range(8):
            predict(torch.ones(2, 16, device=device))
    (told,) = [record.getMessage() for record in caplog.records if "is replayed" in record.getMessage()]
    assert "predict is replayed: " in told
    assert ("lane" in told) == (device.type == "cuda"), told
