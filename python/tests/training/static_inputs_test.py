"""pianola.StaticInputs and pianola.Buckets: nested batches at fixed addresses, padded where their length varies."""

import collections
import dataclasses
import gc
import json
import weakref

import pianola
import pytest
import torch

Pair = collections.namedtuple("Pair", "first second")


@dataclasses.dataclass
class Sample:
    tokens: torch.Tensor
    scale: float = 1.0


def numbers(shape, seed):
    return torch.randint(100, shape, generator=torch.Generator().manual_seed(seed))


def floats(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def padded(tensor, length, value):
    return torch.nn.functional.pad(tensor, (0, length - tensor.shape[1]), value=value)


def expect_same(actual, expected):
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected):
        assert one.dtype == other.dtype and torch.equal(one.cpu(), other.cpu())


def refused(call):
    with pytest.raises(pianola.UsageError) as raised:
        call()
    return raised.value


def nested(seed):
    return {
        "tokens": numbers((4, 7), seed),
        "rest": [floats((2,), seed + 1), None, ("text", 3, floats((), seed + 2))],
        "pair": Pair(floats((3,), seed + 3), 2.5),
        "sample": Sample(numbers((2, 2), seed + 4)),
    }


def test_the_nesting_is_kept_around_tensors_of_their_own(device):
    inputs = pianola.StaticInputs(device)
    inputs.load([nested(1), floats((5,), 9)])
    first, second = inputs.microbatches()
    assert first["rest"][1] is None and first["rest"][2][:2] == ("text", 3)
    assert isinstance(first["pair"], Pair) and first["pair"].second == 2.5
    assert isinstance(first["sample"], Sample) and first["sample"].scale == 1.0
    leaves = [first["tokens"], first["rest"][0], first["rest"][2][2], first["pair"].first, first["sample"].tokens, second]
    expect_same(leaves, inputs.tensors())
    given = nested(1)
    expect_same(leaves[:2] + leaves[4:], [given["tokens"], given["rest"][0], given["sample"].tokens, floats((5,), 9)])
    assert all(tensor.device == device for tensor in leaves) and inputs.device == device


def test_the_current_batch_stays_while_the_next_one_travels(device):
    for pin in (True, False):
        for double_buffer in (True, False):
            inputs = pianola.StaticInputs(device, pin=pin, double_buffer=double_buffer)
            inputs.load([{"x": floats((8, 4), 0)}])
            statics = inputs.microbatches()
            for number in range(1, 6):
                batch = [{"x": floats((8, 4), number)}]
                inputs.prefetch(batch)
                if pin or double_buffer or device.type == "cpu":  # else it has nowhere to wait
                    batch[0]["x"].zero_()
                expect_same([statics[0]["x"]], [floats((8, 4), number - 1)])
                inputs.advance()
                expect_same([statics[0]["x"]], [floats((8, 4), number)])
            assert inputs.microbatches() is statics


def test_keys_may_come_in_another_order(device):
    inputs = pianola.StaticInputs(device)
    inputs.load([{"a": floats((2,), 1), "b": {"c": floats((3,), 2), "d": floats((3,), 3)}}])
    inputs.load([{"b": {"d": floats((3,), 6), "c": floats((3,), 5)}, "a": floats((2,), 4)}])
    expect_same(inputs.tensors(), [floats((2,), 4), floats((3,), 5), floats((3,), 6)])


@pytest.mark.parametrize(
    "change, message, fix",
    [
        (lambda m: {**m, "tokens": numbers((4, 6), 1)}, "microbatch 1['tokens']: expected Long [4, 7], got Long [4, 6]",
         "set buckets"),
        (lambda m: {**m, "tokens": floats((4, 7), 1)}, "microbatch 1['tokens']: expected Long [4, 7], got Float [4, 7]",
         "convert it"),
        (lambda m: {k: v for k, v in m.items() if k != "rest"}, "microbatch 1 lacks the key 'rest'",
         "structure of the first"),
        (lambda m: {**m, "more": floats((2,), 1)}, "microbatch 1 has the key 'more', which the first batch did not have",
         "structure of the first"),
        (lambda m: {**m, "rest": [m["rest"][0], m["rest"][0], m["rest"][2]]},
         "microbatch 1['rest'][1]: expected None, got a tensor", "or None in every batch"),
        (lambda m: {**m, "rest": [None, *m["rest"][1:]]}, "microbatch 1['rest'][0]: expected a tensor, got None",
         "or None in every batch"),
        (lambda m: {**m, "rest": m["rest"][:2]}, "microbatch 1['rest']: expected a list of 3, got a list of 2",
         "structure of the first"),
        (lambda m: {**m, "rest": tuple(m["rest"])}, "microbatch 1['rest']: expected a list of 3, got a tuple of 3",
         "structure of the first"),
        (lambda m: {**m, "pair": Pair(m["pair"].first, 3.5)}, "microbatch 1['pair'].second: expected 2.5, got 3.5",
         "pass what changes as a tensor"),
        (lambda m: {**m, "sample": Sample(m["sample"].tokens, 2.0)}, "microbatch 1['sample'].scale: expected 1.0, got 2.0",
         "pass what changes as a tensor"),
        (lambda m: {**m, "sample": Sample(numbers((2, 3), 1))},
         "microbatch 1['sample'].tokens: expected Long [2, 2], got Long [2, 3]", "set buckets"),
        (lambda m: m["tokens"], "microbatch 1: expected a dict of 4, got a tensor", "structure of the first"),
    ],
)  # fmt: skip
def test_what_differs_from_the_first_batch_is_named(device, change, message, fix):
    inputs = pianola.StaticInputs(device)
    inputs.load([nested(1), nested(2)])
    before = [tensor.clone() for tensor in inputs.tensors()]
    error = refused(lambda: inputs.load([nested(3), change(nested(4))]))
    assert error.what == message and fix in error.fix
    expect_same(inputs.tensors(), before)
    inputs.load([nested(3), nested(4)])


def test_calls_that_make_no_sense_are_refused(device):
    inputs = pianola.StaticInputs(device)
    assert "hold no batch yet" in refused(inputs.microbatches).what
    assert "no batch was prefetched" in refused(inputs.advance).what
    assert "one value per microbatch, got a dict" in refused(lambda: inputs.load({"x": floats((2,), 1)})).what
    assert "no microbatch" in refused(lambda: inputs.load([])).what
    assert "microbatch 0['x'] is of type ndarray" in refused(lambda: inputs.load([{"x": floats((2,), 1).numpy()}])).what
    inputs.prefetch([floats((2,), 1), floats((2,), 2)])
    assert "waits already" in refused(lambda: inputs.prefetch([floats((2,), 1), floats((2,), 2)])).what
    inputs.advance()
    for count in (1, 3):
        error = refused(lambda: inputs.load([floats((2,), 1)] * count))
        assert f"has {count} microbatches, the first one had 2" in error.what
    graph, batch = pianola.Graph(device), [floats((2,), 1)] * 2
    error = refused(lambda: graph.capture(lambda: inputs.load(batch), warmup=0))
    assert "inside a capture" in error.what
    expect_same(inputs.tensors(), [floats((2,), 1), floats((2,), 2)])


def test_a_captured_step_reads_each_batch_as_eager_does(device):
    def make():
        torch.manual_seed(3)
        return torch.nn.Linear(6, 4).to(device)

    def step(model, microbatches):
        losses = []
        for batch in microbatches:
            losses.append(torch.nn.functional.mse_loss(model(batch["x"]), batch["y"]))
            losses[-1].backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(0.1 * parameter.grad)
                parameter.grad.zero_()
        return losses

    def batch_of(number):
        return [{"x": floats((8, 6), 4 * number + i), "y": floats((8, 4), 4 * number + i + 2)} for i in range(2)]

    eager, graphed = make(), make()
    for model in (eager, graphed):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
    inputs = pianola.StaticInputs(device)
    inputs.load(batch_of(0))
    graph, losses = pianola.Graph(device), []
    graph.capture(lambda: losses.__setitem__(slice(None), step(graphed, inputs.microbatches())))
    for number in range(5):
        graph.replay()
        inputs.prefetch(batch_of(number + 1))
        moved = [{name: tensor.to(device) for name, tensor in batch.items()} for batch in batch_of(number)]
        expect_same(losses, step(eager, moved))
        expect_same(list(graphed.parameters()), list(eager.parameters()))
        inputs.advance()


def test_buckets_pad_each_tensor_with_its_value(device):
    buckets = pianola.Buckets([4, 8], pad={"tokens": 0, "targets": -100, "mask": [(-1, False), (-2, False)]})
    inputs = pianola.StaticInputs(device, buckets=buckets)
    assert inputs.bucket == 0 and buckets.bucket_of(5) == 8 and buckets.sizes == [4, 8]
    for length in (3, 7, 4, 1, 8):
        tokens, targets = numbers((2, length), 1), numbers((2, length), 2)
        mask = torch.ones((1, length, length), dtype=torch.bool)
        inputs.load([{"text": {"tokens": tokens, "mask": mask}, "targets": targets}])
        assert inputs.bucket == (4 if length <= 4 else 8)
        square = torch.zeros((1, inputs.bucket, inputs.bucket), dtype=torch.bool)
        square[:, :length, :length] = True
        expect_same(inputs.tensors(), [padded(tokens, inputs.bucket, 0), square, padded(targets, inputs.bucket, -100)])
        expect_same([inputs.microbatches()[0]["targets"]], [padded(targets, inputs.bucket, -100)])
    uses = inputs.bucket_uses()
    assert [(use.length, use.batches) for use in uses] == [(4, 3), (8, 2)]
    told = json.loads(inputs.report().to_json())["buckets"]
    assert [use["waste_percent"] for use in told] == [use.waste_percent for use in uses]
    assert "Buckets" in str(inputs)


def test_fields_of_dataclasses_and_positions_are_padded_by_their_names(device):
    for name, microbatch in (("tokens", Sample(numbers((2, 3), 1))), ("[0]", [numbers((2, 3), 1)])):
        inputs = pianola.StaticInputs(device, buckets=pianola.Buckets([4], pad={name: 7}))
        inputs.load([microbatch])
        expect_same(inputs.tensors(), [padded(numbers((2, 3), 1), 4, 7)])


def test_without_a_list_all_tensors_of_the_length_are_padded(device):
    inputs = pianola.StaticInputs(device, buckets=pianola.Buckets([6], dim=-1, value=1))
    inputs.load([(numbers((2, 5), 1), floats((4,), 2), floats((3, 5), 3))])
    expect_same(inputs.tensors(), [padded(numbers((2, 5), 1), 6, 1), floats((4,), 2), padded(floats((3, 5), 3), 6, 1)])


def test_each_bucket_gets_a_graph_largest_first(device):
    inputs = pianola.StaticInputs(device, buckets=pianola.Buckets([2, 4, 8], pad={"x": 0.5}))
    inputs.load([{"x": floats((2, 3), 1)}])
    graphs, results, pool = {}, {}, None

    def capture(length):
        nonlocal pool
        graphs[length] = pianola.Graph(device)
        x = inputs.microbatches()[0]["x"]
        graphs[length].capture(lambda: results.__setitem__(length, (x * 2).sum(1)), pool=pool)
        pool = pool or graphs[length].pool()

    inputs.for_each_bucket(capture)
    assert list(graphs) == [8, 4, 2] and inputs.bucket == 4
    for length in (3, 8, 1, 2, 5):
        x = floats((2, length), length)
        inputs.load([{"x": x}])
        graphs[inputs.bucket].replay()
        expect_same([results[inputs.bucket]], [(padded(x, inputs.bucket, 0.5).to(device) * 2).sum(1)])


def test_what_does_not_fit_the_buckets_is_refused(device):
    assert "each larger than the one before" in refused(
        lambda: pianola.StaticInputs(device, buckets=pianola.Buckets([4, 2]))
    ).what
    inputs = pianola.StaticInputs(device, buckets=pianola.Buckets([4], pad={"token": 0}))
    error = refused(lambda: inputs.load([{"tokens": numbers((2, 3), 1)}]))
    assert error.what == "the buckets pad 'token', but the batch has no such tensor; microbatch 0 has ['tokens']"
    inputs = pianola.StaticInputs(device, buckets=pianola.Buckets([4, 8]))
    assert "no bucket holds a length of 9; the buckets are 4, 8" in refused(lambda: inputs.load([numbers((2, 9), 1)])).what
    inputs.load([numbers((2, 3), 1)])
    assert inputs.bucket == 4


def test_nothing_keeps_them_alive(device):
    inputs = pianola.StaticInputs(device)
    inputs.load([{"x": floats((2,), 1)}])
    watch = weakref.ref(inputs)
    gc.disable()
    try:
        del inputs
        assert watch() is None, "no reference cycle"
    finally:
        gc.enable()
