"""Arguments that are wrong: each error names the argument, and none is pybind11's own list of signatures."""

import numpy
import pytest
import torch

import pianola
from pianola._wrong_arguments import sentence

X = torch.ones(2)


def layer():
    return torch.nn.Linear(2, 2)


def made(**options):
    return lambda: pianola.make_graphed_callables(layer(), (torch.ones(1, 2),), **options)


def graphed(**options):
    return lambda: pianola.graphed(lambda x: x * 2, **options)


def iteration(**options):
    return lambda: pianola.FullIteration(lambda mbs: mbs[0] * 2, **options)


def captured(**options):
    return lambda: pianola.Graph("cpu").capture(lambda: X * 2, **options)


def replayed(*sources):
    def call():
        graph = pianola.Graph("cpu")
        graph.capture(lambda: X * 2, inputs=[X])
        graph.replay(*sources)

    return call


def audited(**options):
    return lambda: pianola.audit(lambda: X * 2, **options)


def pooled(pool):
    with pianola.graph(pianola.CUDAGraph(), pool=pool, device="cpu"):
        X * 2


NO_BYTES = "memory_limit must be a whole number of bytes, 0 or more, got {}\n  fix:   pass bytes as an int, such as memory_limit=2 << 30 for 2 GiB"

WRONG = {
    "graphed warmup": (graphed(warmup="three"), "warmup"),
    "graphed warmup None": (graphed(warmup=None), "warmup"),
    "graphed warmup 0": (graphed(warmup=0), "warmup"),
    "graphed warmup 2**70": (graphed(warmup=2**70), "warmup"),
    "graphed capacity": (graphed(capacity=2.5), "capacity"),
    "graphed in flight": (graphed(max_in_flight=-1), "max_in_flight"),
    "graphed branches": (graphed(branches="4"), "branches"),
    "graphed parallel": (graphed(parallel=4), "parallel"),
    "graphed outputs": (graphed(outputs="copies"), "outputs"),
    "graphed grad": (graphed(grad=3), "grad"),
    "graphed mode": (graphed(capture_error_mode=1), "mode"),
    "graphed pool": (graphed(pool="mine"), "graphed needs a pianola.GraphPool, not 'mine'"),
    "graphed pool by name": (graphed(pool=(0, 1)), "graphed needs a pianola.GraphPool, not its name"),
    "graphed pool of a graph": (graphed(pool=pianola.Graph("cpu")), "graphed needs a pianola.GraphPool, not <"),
    "graphed target": (lambda: pianola.graphed(3), "int"),
    "graphed memory limit": (graphed(memory_limit=-1), NO_BYTES.format("-1")),
    "graphed memory limit str": (graphed(memory_limit="1"), NO_BYTES.format("'1'")),
    "callables warmup": (made(num_warmup_iters="x"), "warmup"),
    "callables warmup None": (made(num_warmup_iters=None), "warmup"),
    "callables warmup -1": (made(num_warmup_iters=-1), "warmup"),
    "callables slots": (made(slots="two"), "slots"),
    "callables slots 0": (made(slots=0), "slots"),
    "callables unused": (made(allow_unused_input="yes"), "allow_unused_input"),
    "callables schedule": (made(schedule="1,-1"), "schedule"),
    "callables through": (made(through_autograd=["weight"]), "through_autograd"),
    "callables order": (made(_order="1,-1"), "_order"),
    "callables order entries": (made(_order=[1, "x"]), "_order"),
    "callables order None": (made(_order=[None]), "_order"),
    "callables layers": (made(_order=[1, -1], _num_layers_per_chunk="1"), "_num_layers_per_chunk"),
    "callables layers float": (made(_order=[1, -1], _num_layers_per_chunk=[1.5]), "_num_layers_per_chunk"),
    "callables on_full": (made(on_full="wait"), "on_full"),
    "callables mode": (made(capture_error_mode="strict"), "capture error mode"),
    "callables sample": (lambda: pianola.make_graphed_callables(layer(), X), "sample_args"),
    "callables none": (lambda: pianola.make_graphed_callables(None, (X,)), "NoneType"),
    "callables empty": (lambda: pianola.make_graphed_callables((), ()), "no callable"),
    "iteration warmup": (iteration(warmup="x"), "warmup"),
    "iteration capacity": (iteration(capacity=[]), "capacity"),
    "iteration memory limit": (iteration(memory_limit=-1), NO_BYTES.format("-1")),
    "iteration memory limit bool": (iteration(memory_limit=False), NO_BYTES.format("False")),
    "iteration strict": (iteration(strict="yes"), "strict"),
    "iteration pool": (iteration(pool=True), "FullIteration needs a pianola.GraphPool, not True"),
    "iteration pool by name": (iteration(pool=(0, 1)), "FullIteration needs a pianola.GraphPool, not its name"),
    "iteration pool family": (iteration(pool=pianola.GraphPoolFamily()), "FullIteration needs a pianola.GraphPool, not <"),
    "iteration stage": (lambda: iteration()()([X], stage="test"), "stage"),
    "capture warmup": (captured(warmup="x"), "warmup"),
    "capture warmup -1": (captured(warmup=-1), "warmup"),
    "capture memory limit": (captured(memory_limit=-1), NO_BYTES.format("-1")),
    "capture memory limit bool": (captured(memory_limit=True), NO_BYTES.format("True")),
    "capture memory limit float": (captured(memory_limit=1.5e9), NO_BYTES.format("1500000000.0")),
    "capture memory limit None": (captured(memory_limit=None), NO_BYTES.format("None")),
    "capture memory limit 2**70": (captured(memory_limit=2**70), "memory_limit is out of range"),
    "capture inputs": (captured(inputs=[1]), "inputs"),
    "capture inputs tensor": (captured(inputs=3), "int"),
    "capture inputs that are one tensor": (captured(inputs=X), "inputs must be a list of tensors, got a tensor"),
    "capture pool below 0": (captured(pool=(-1, 5)), "pool is (-1, 5), which names no memory pool"),
    "capture generators": (captured(generators=[3]), "generators"),
    "capture restore": (captured(restore="no"), "restore"),
    "capture check": (captured(check="lax"), "check"),
    "capture stream": (captured(stream="side"), "stream must be a torch.Stream or None, got 'side'"),
    "capture names": (captured(names={"x": 3}), "names must be a dict of a str to a torch.Tensor, got {'x': 3}"),
    "audit iterations": (audited(iterations="x"), "iterations"),
    "audit iterations 1": (audited(iterations=1), "iterations"),
    "audit warmup": (audited(warmup=-1), "warmup"),
    "audit sources": (audited(sources="x"), "sources"),
    "audit callables": (audited(callables=[3]), "callables"),
    "pool": (lambda: pooled("mine"), "pool"),
    "pool of strings": (lambda: pooled(("a", "b")), "pool"),
    "schedule text": (lambda: pianola.Schedule.parse(3), "text"),
    "schedule order": (lambda: pianola.Schedule.from_order("12"), "order"),
    "schedule layers": (lambda: pianola.Schedule.parse("1,-1", layers_per_chunk="x"), "layers_per_chunk"),
    "schedule size": (lambda: pianola.Schedule.one_f_one_b(pipeline_size="2", microbatches=4), "pipeline_size"),
    "schedule missing": (lambda: pianola.Schedule.one_f_one_b(pipeline_size=2), "microbatches"),
    "schedule unknown": (lambda: pianola.Schedule.gpipe(pipeline_size=2, microbatches=2, depth=3), "depth"),
    "schedule chunk": (lambda: pianola.Schedule.parse("1,-1").layers("x"), "chunk"),
    "parallel": (lambda: pianola.ParallelOptions(workspaces="x"), "workspaces"),
    "device": (lambda: pianola.Graph([]), "device"),
    "replay": (replayed(3), "input 1"),
    "replay of a shorter tensor": (replayed(X[:1]), "for input 0, whose shape is [2]; nothing was launched"),
    "replay of a list": (replayed([X]), "input 1"),
}  # fmt: skip
_NEVER = ("Unable to cast", "incompatible", "Invoked with", "The following argument types")


@pytest.mark.parametrize("name", list(WRONG))
def test_a_wrong_argument_is_named(name):
    call, named = WRONG[name]
    with pytest.raises((pianola.Error, TypeError)) as raised:
        call()
    text = str(raised.value)
    assert not any(words in text for words in _NEVER), text
    assert named in text, text
    if isinstance(raised.value, TypeError):
        assert "\n" not in text


@pytest.mark.parametrize("limit", [0, 1 << 40, numpy.int64(1 << 40)])
def test_bytes_may_be_any_whole_number(limit):
    step = pianola.graphed(lambda x: x * 2, memory_limit=limit)
    for _ in range(5):
        assert step(X).tolist() == [2.0, 2.0]
    assert step.info().signatures[0].replays > 0


@pytest.mark.parametrize(
    "args, kwargs, told",
    [
        ((object(), "x"), {}, "f(): count must be a whole number, got 'x'"),
        ((object(), 1), {"names": ["a", 3]}, "f(): names must be a list of strs, got ['a', 3]"),
        ((object(),), {"nome": 3}, "f(): there is no argument 'nome'"),
        ((object(), 1, 2, 3), {}, "f(): takes 1 positional arguments, got 3"),
        ((object(), -1), {}, "f(): count is out of range, got -1"),
        ((object(), 1), {"count": 2}, "f(): count was given twice"),
    ],
)
def test_what_pybind11_says_becomes_a_sentence(args, kwargs, told):
    text = (
        "f(): incompatible function arguments. The following argument types are supported:\n"
        "    1. (self: pianola._C.A, count: typing.SupportsInt | typing.SupportsIndex, *, "
        "names: collections.abc.Sequence[str] = []) -> None\n\nInvoked with: ..."
    )
    assert sentence(text, args, kwargs) == told
