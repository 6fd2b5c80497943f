"""Numbers that a step reads from tensors and returns: read after each replay. What else is done with them keeps it eager."""

import dataclasses
import math
import queue
import threading

import pytest
import torch

import pianola
from twins import assert_same

CALLS = 10


def bits(value):
    """What tells two results apart: types, NaN, the sign of zero, and the bits of tensors."""
    if isinstance(value, (tuple, list)):
        return [type(value), *map(bits, value)]
    if isinstance(value, dict):
        return {key: bits(one) for key, one in value.items()}
    return (value.dtype, value.tolist()) if isinstance(value, torch.Tensor) else (type(value), repr(value))


def inputs(device, calls=CALLS):
    torch.manual_seed(3)
    return [torch.randn(4, 3).to(device) for _ in range(calls)]


def run_both(make, device, batches=None, **options):
    """Runs what `make(device)` makes eagerly and graphed, and compares each result. The signatures and the reasons."""
    torch.manual_seed(0)
    eager = make(device)
    torch.manual_seed(0)
    reasons = []
    graphed = pianola.graphed(make(device), on_fallback=reasons.append, **options)
    for x in batches or inputs(device):
        assert bits(graphed(x)) == bits(eager(x))
    return graphed.info().signatures, reasons


def expect_replays(make, device, batches=None, **options):
    (signature,), reasons = run_both(make, device, batches, **options)
    calls = len(batches or range(CALLS))
    assert not reasons and signature.replays == calls - 3 and signature.recaptures == 0
    return signature


def expect_eager(make, device, *texts, **options):
    (signature,), reasons = run_both(make, device, **options)
    assert signature.replays == 0 and len(reasons) == 1
    for text in texts:
        assert text in reasons[0]
    return reasons[0]


def trainer(device, ends, **options):
    model = torch.nn.Linear(3, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def train_step(x):
        optimizer.zero_grad()
        output = model(x)
        loss = output.square().mean()
        loss.backward()
        optimizer.step()
        return ends(loss, output, x)

    return train_step


def returns_the_loss(loss, output, x):
    return loss.item()


def returns_a_dict(loss, output, x):
    return {"loss": loss.item(), "accuracy": (output > 0).float().mean().item(), "batch": 4}


def returns_a_tensor_as_well(loss, output, x):
    return loss.item(), output


def returns_the_same_twice(loss, output, x):
    value = loss.item()
    return value, [value, loss.item()], value


def returns_other_types(loss, output, x):
    positive = (output > 0).sum()
    return positive.item(), (positive > 3).item(), loss.half().item(), torch.complex(loss, loss).item()


def calculates(loss, output, x):
    value = loss.item()
    total = 0.0
    for row in output:
        total += row.sum().item()
    return value / len(x), round(100.0 * (output > 0).sum().item() / 8, 2), -total, +value, abs(value - total) ** 0.5, 3 // (value + 1)


def of_a_detached_loss(loss, output, x):
    return loss.detach().float().item() * 2


def by_a_helper(loss, output, x):
    return Meter.mean_of(loss.item(), (output > 0).sum().item())


class Meter:
    @staticmethod
    def mean_of(one, other):
        return (one + other) / 2


ENDS = [returns_the_loss, returns_a_dict, returns_a_tensor_as_well, returns_the_same_twice, returns_other_types, calculates,
        of_a_detached_loss, by_a_helper]  # fmt: skip


@pytest.mark.parametrize("outputs", ["clone", "alias"])
@pytest.mark.parametrize("ends", ENDS, ids=lambda one: one.__name__)
def test_a_training_step_may_return_what_it_reads(device, ends, outputs):
    if outputs == "alias" and ends is returns_a_tensor_as_well:
        pytest.skip("the next call overwrites the tensor, as asked for")
    signature = expect_replays(lambda device: trainer(device, ends), device, outputs=outputs)
    assert signature.kind == "step"


def test_parameters_are_those_of_eager(device):
    torch.manual_seed(0)
    weights = []
    for wrap in (lambda f: f, pianola.graphed):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        @wrap
        def train_step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.item()

        for x in inputs(device):
            train_step(x)
        weights.append(model.weight.detach().clone())
    assert_same("weight", *weights)


def test_numbers_that_float_and_int_make_are_returned_at_once(device):
    def make(device):
        def function(x):
            return {"sum": float(x.sum()), "counts": [int((x > 0).sum()), int(x.sum() * 10)], "item": x.mean().item(), "flag": float(
                (x > 0).any())}

        return function

    if hasattr(make.__code__, "co_positions"):
        expect_replays(make, device)
        expect_replays(lambda device: torch.no_grad()(make(device)), device)
    else:
        expect_eager(make, device, "PG101")


def test_not_those_that_are_kept_first(device):
    def make(device):
        def function(x):
            total = float(x.sum())
            return total

        return function

    expect_eager(make, device, "PG101", "function at late_reads_test.py")


def test_nor_those_of_a_function_that_the_step_calls(device):
    def total(x):
        return float(x.sum())

    def make(device):
        return lambda x: (total(x) > 0, x * 2)

    expect_eager(make, device, "PG101", "total at late_reads_test.py")


@pytest.mark.parametrize("trains", [True, False])
def test_a_model_may_return_what_it_reads_with_its_outputs(device, trains):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(3, 2)

        def forward(self, x):
            y = self.inner(x)
            return y, y.abs().max().item()

    torch.manual_seed(0)
    eager = Model().to(device)
    torch.manual_seed(0)
    graphed = pianola.graphed(Model().to(device))
    with torch.set_grad_enabled(trains):
        for x in inputs(device):
            (one, number), (other, same) = eager(x), graphed(x)
            assert_same("output", one, other)
            assert bits(number) == bits(same)
            if trains:
                for model, output in ((eager, one), (graphed, other)):
                    model.zero_grad()
                    output.square().sum().backward()
                assert_same("gradient", eager.inner.weight.grad, graphed.inner.weight.grad)
    (signature,) = graphed.forward.info().signatures
    assert signature.replays == CALLS - 3 and signature.kind == ("autograd" if trains else "inference")


def test_nan_and_infinity_come_out_as_they_are(device):
    values = [1.0, math.nan, -0.0, math.inf, 5e-324, 0.0, -math.inf, math.nan, 0.1, 1e300]
    batches = [torch.tensor([value], dtype=torch.float64, device=device) for value in values]
    expect_replays(lambda device: lambda x: ((x * 1).item(), (x + 1).sum().item() * 2), device, batches)


def test_a_read_in_the_middle_is_of_what_was_there_then(device):
    def make(device):
        total = torch.zeros(3, device=device)

        def function(x):
            total.add_(x.sum(0))
            before = total.sum().item(), total[0].item()
            total.mul_(0.5)
            return before, total[0].item(), total * 2

        return function

    expect_replays(make, device)


def test_a_read_of_a_tensor_of_the_cpu_gives_what_is_there(device):
    count = torch.zeros(1)
    graphed = pianola.graphed(lambda x: (x.sum().item(), count.item()))
    for i, x in enumerate(inputs(device)):
        count.fill_(i // 4)
        assert bits(graphed(x)) == [tuple, (float, repr(x.sum().item())), (float, repr(i // 4 + 0.0))]


def test_results_are_nested_as_they_were(device):
    @dataclasses.dataclass
    class Metrics:
        loss: float
        parts: tuple

    graphed = pianola.graphed(lambda x: Metrics(x.sum().item(), (x.max().item(), x * 2, "name")))
    for x in inputs(device):
        result = graphed(x)
        assert type(result) is Metrics and type(result.loss) is float and result.parts[2] == "name"
        assert (result.loss, result.parts[0]) == (x.sum().item(), x.max().item())
    assert graphed.info().signatures[0].replays == CALLS - 3


def test_what_is_done_with_a_result_after_the_call_is_the_callers(device):
    graphed = pianola.graphed(lambda x: {"sum": x.sum().item()})
    kept = []
    for x in inputs(device):
        result = graphed(x)
        result["sum"] += 1
        kept.append(result)
    assert [one["sum"] for one in kept] == [x.sum().item() + 1 for x in inputs(device)]


def test_each_shape_has_reads_of_its_own(device):
    torch.manual_seed(0)
    graphed = pianola.graphed(lambda x: [row.sum().item() / len(x) for row in x])
    for size in (2, 3) * 6:
        x = torch.randn(size, 3, device=device)
        assert graphed(x) == [row.sum().item() / size for row in x]
    assert sorted(one.replays for one in graphed.info().signatures) == [3, 3]


@pytest.mark.parametrize("stage", ["training", "validation"])
def test_full_iterations_may_return_what_they_read(device, stage):
    def make():
        torch.manual_seed(0)
        step = trainer(device, returns_a_dict)
        return lambda microbatches: [step(x) for x in microbatches]

    eager, iteration = make(), pianola.FullIteration(make(), make())
    for x in inputs(device):
        assert bits(iteration([x, x + 1], stage)) == bits(eager([x, x + 1]))
    (one,) = iteration.info().signatures
    assert one.state == "captured" and one.replays == CALLS - 3


# --- What stays eager ---


def decides(x):
    total = x.sum().item()
    return total if total < 1e9 else x


def stays_in_a_list(x):
    total = x.sum().item()
    KEPT.append(total)
    return total


def goes_into_a_queue(x):
    total = x.sum().item()
    QUEUE.put(total)
    return total


def is_formatted(x):
    total = x.sum().item()
    return total, f"{total:.3f}"


def becomes_a_string(x):
    total = x.sum().item()
    return total, str(total)


def goes_to_c(x):
    total = x.sum().item()
    return total, math.atan(total)


def becomes_a_whole_number(x):
    return int(x.sum().item())


def is_a_key(x):
    return {x.sum().item(): 1}, 2.0


def scales_a_tensor(x):
    total = x.sum().item()
    return total, x * total


def fills_a_tensor(x):
    count = (x > -100).sum().item()  # the same in each call
    return count, torch.full_like(x, count)


def swallows(x):
    total = x.sum().item()
    try:
        return total, math.sqrt(total * total)
    except Exception:
        return total, 0.0


def asks_the_type(x):
    total = x.sum().item()
    return total + 1 if type(total) is float else total


def is_not_returned(x):
    x.sum().item()
    return x * 2


def returns_one_of_two(x):
    x.sum().item()
    return x.mean().item(), 1.0


def is_compared(x):
    total = x.sum().item()
    return total, max(total, -1e9)


def is_summed_up(x):
    return sum((x.sum().item(), x.mean().item()))


def is_the_reason_to_stop(x):
    total = x.sum().item()
    if not math.isfinite(total):
        raise FloatingPointError
    return total


KEPT, QUEUE = [], queue.SimpleQueue()


@pytest.mark.parametrize("function", [
    goes_into_a_queue, is_formatted, becomes_a_string, goes_to_c, becomes_a_whole_number, swallows, asks_the_type,
    is_summed_up, fills_a_tensor,
], ids=lambda one: one.__name__)  # fmt: skip
def test_a_number_that_is_used_on_the_way_keeps_it_eager(device, function):
    expect_eager(lambda device: function, device, "PG101", f"{function.__name__} at late_reads_test.py")


@pytest.mark.parametrize("function", [decides, is_compared, is_the_reason_to_stop, is_not_returned, returns_one_of_two], ids=lambda one: one.__name__)
def test_one_that_decides_or_is_dropped_replays_unless_replays_check_nothing(device, function):
    expect_replays(lambda device: function, device)
    expect_eager(lambda device: function, device, "PG101", f"{function.__name__} at late_reads_test.py", islands="marked")


@pytest.mark.parametrize("function, rule", [(stays_in_a_list, "PG"), (is_a_key, "PG101"), (scales_a_tensor, "PG301")],
                         ids=lambda one: getattr(one, "__name__", ""))  # fmt: skip
def test_so_does_one_that_is_kept_or_given_to_an_operation(device, function, rule):
    expect_eager(lambda device: function, device, rule, f"{function.__name__} at late_reads_test.py")


def test_what_is_kept_is_pythons_own_number(device):
    KEPT.clear()
    expect_eager(lambda device: stays_in_a_list, device)
    assert [type(one) for one in KEPT] == [float] * 2 * CALLS and KEPT[::2] == KEPT[1::2]
    while not QUEUE.empty():
        assert type(QUEUE.get()) is float


def test_a_step_that_stops_being_captured_has_trained_once(device):
    def checks(loss, output, x):
        value = loss.item()
        if value > 1e9:
            raise FloatingPointError
        return value, output

    expect_eager(lambda device: trainer(device, checks), device, "PG101", "checks at late_reads_test.py", islands="marked")


def test_reads_on_other_threads_are_as_ever(device):
    x, stop, wrong = torch.ones(2), threading.Event(), []

    def read():
        while not stop.is_set():
            if type(x.sum().item()) is not float or float(x.sum()) != 2.0:
                wrong.append(1)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        expect_replays(lambda device: trainer(device, returns_a_dict), device)
    finally:
        stop.set()
        thread.join()
    assert not wrong and "item" not in vars(torch.Tensor) and "__float__" not in vars(torch.Tensor)
