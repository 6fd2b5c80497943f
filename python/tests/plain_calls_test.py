"""What is no plain work on plain tensors, in a step, among its inputs or around a call: eager, with the reason told once, or
refused by name. Never a crash, never other numbers than eager's."""

import ctypes
import warnings

import pianola
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts


HAS_NAMES = hasattr(torch.Tensor, "refine_names")  # torch 2.15 has no tensors with named dimensions


class CountingMode(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))


class DoublingMode(TorchFunctionMode):
    """Doubles what torch.mul returns."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.mul else result


class Wrapped(torch.Tensor):
    """Holds a tensor, and runs Python for each operation."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def unwrap(value):
            return value.inner if isinstance(value, Wrapped) else value

        result = func(*map(unwrap, args), **(kwargs or {}))
        return Wrapped(result) if isinstance(result, torch.Tensor) else result


class Loud(torch.Tensor):
    """Triples what torch.add returns; no key of the dispatcher shows it."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result * 3 if func is torch.add else result


def in_functionalize(x):
    return torch.func.functionalize(lambda y: y.clone().add_(1))(x)


def in_dispatch_mode(x):
    with CountingMode():
        return x.sin() + 1


def in_fake_mode(x):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        shape = (mode.from_tensor(x) @ mode.from_tensor(x).T).shape
    return x.sum() * shape[0]


def with_tangent(x):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual((forward_ad.make_dual(x, torch.ones_like(x))).sin()).tangent


def with_names(x):
    return x.refine_names("N", "C").sum("C").rename(None)


def with_nested(x):
    return torch.nested.nested_tensor([x[0], x[1, :2]]).to_padded_tensor(0.0)


def with_selective_checkpoint(x):
    def policy(context, op, *args, **kwargs):
        return CheckpointPolicy.PREFER_RECOMPUTE

    weight = torch.ones(4, 4, device=x.device, requires_grad=True)
    contexts = lambda: create_selective_checkpoint_contexts(policy)  # noqa: E731
    y = checkpoint(lambda y: (y @ weight).sin(), x, use_reentrant=False, context_fn=contexts)
    return torch.autograd.grad(y.sum(), weight)[0]


STEPS = {
    in_functionalize: "transform of torch.func",
    in_dispatch_mode: "TorchDispatchMode (CountingMode)",
    in_fake_mode: "(FakeTensorMode)",
    with_tangent: "a dual tensor of forward-mode AD",
    **({with_names: "a tensor with named dimensions"} if HAS_NAMES else {}),
    with_nested: "nested tensor",
    with_selective_checkpoint: "TorchDispatchMode (_CachingTorchDispatchMode)",
}
steps = pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)


@pytest.fixture(autouse=True)
def quiet():
    """Named and nested tensors warn that they are prototypes, and not every derivative has a deterministic kernel."""
    torch.use_deterministic_algorithms(False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def rows(device, seed=1):
    return torch.randn(3, 4, generator=torch.Generator("cpu").manual_seed(seed), device="cpu").to(device)


def same(one, other):
    if one.is_sparse:
        one, other = one.to_dense(), other.to_dense()
    assert one.dtype == other.dtype and torch.equal(one, other)


# --- In a step ---


@steps
def test_a_graphed_function_stays_eager(step, device):
    reasons = []
    graphed = pianola.graphed(step, warmup=2, on_fallback=reasons.append)
    for seed in range(6):
        same(graphed(rows(device, seed)), step(rows(device, seed)))
    assert len(reasons) == 1 and STEPS[step] in reasons[0] and "PG1203" in reasons[0], reasons
    assert [one.state for one in graphed.info().signatures] == ["eager"]


@steps
def test_a_capture_is_refused(step, device):
    x = rows(device)
    graph = pianola.Graph(device)
    with pytest.raises(pianola.CaptureError) as refused:
        graph.capture(lambda: step(x))
    error = refused.value
    assert STEPS[step] in error.what and error.rule == "PG1203" and error.fix
    assert " at plain_calls_test.py:" in error.where, error.where
    with pytest.raises(pianola.CaptureError) as refused:
        with pianola.graph(pianola.CUDAGraph(), device=device):
            step(x)
    assert refused.value.rule == "PG1203"
    result = []
    graph.capture(lambda: result.append(x * 2))  # nothing is left of it
    graph.replay()
    same(result[-1], x * 2)


class _ExceptionCounts(ctypes.Structure):
    """What a thread's C++ runtime counts: `__cxa_eh_globals` of the Itanium C++ ABI."""

    _fields_ = [("caught", ctypes.c_void_p), ("uncaught", ctypes.c_uint)]


@pytest.fixture
def lost_exception():
    """As after an exception that a library caught by a C++ runtime of its own: this thread's never hears of its end."""
    counts_of_thread = ctypes.CDLL("libstdc++.so.6").__cxa_get_globals
    counts_of_thread.restype = ctypes.POINTER(_ExceptionCounts)
    counts = counts_of_thread().contents
    counts.uncaught += 1
    yield
    counts.uncaught -= 1


def test_the_line_is_named_where_a_library_lost_an_exception(lost_exception, device):
    x = rows(device)
    for step, rule in ((in_dispatch_mode, "PG1203"), (lambda x: x.sum().item(), "PG101")):
        with pytest.raises(pianola.CaptureError) as refused:
            pianola.Graph(device).capture(lambda: step(x), warmup=0)
        assert refused.value.rule == rule and " at plain_calls_test.py:" in refused.value.where


@steps
def test_a_callable_is_refused(step, device):
    with pytest.raises(pianola.CaptureError) as refused:
        pianola.make_graphed_callables(step, (rows(device),))
    assert STEPS[step] in refused.value.what and refused.value.rule == "PG1203"


@steps
def test_an_iteration_stays_eager_or_is_refused(step, device):
    reasons = []
    iteration = pianola.FullIteration(
        lambda batch: step(batch[0]), warmup=2, eager_fallback=True, on_fallback=reasons.append
    )
    for seed in range(4):
        same(iteration([rows(device, seed)]), step(rows(device, seed)))
    assert len(reasons) == 1 and STEPS[step] in reasons[0], reasons
    strict = pianola.FullIteration(lambda batch: step(batch[0]), warmup=1)
    strict([rows(device)])
    with pytest.raises(pianola.Error) as refused:
        strict([rows(device)])
    assert STEPS[step] in str(refused.value)


@steps
def test_the_audit_says_so(step, device):
    report = pianola.audit(step, batches=[(rows(device, seed),) for seed in range(3)])
    found = [finding for finding in report.findings if finding.rule == "PG1203"]
    assert len(found) == 1 and STEPS[step] in found[0].what, report.to_text()
    assert not report.ok


@steps
def test_verify_says_so(step, device):
    report = pianola.verify(step, pianola.graphed(step), inputs=[(rows(device),)])
    assert report.verdict == "failed" and STEPS[step] in report.error, report.to_text()


# --- Among the inputs ---


def sparse_csr(x):
    return x.relu().to_sparse_csr()


def quantized(x):
    return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)


INPUTS = {
    "subclass": (Wrapped, lambda x: (x * 2).inner, "a Wrapped, which runs Python for each operation"),
    "function_subclass": (
        lambda x: x.as_subclass(Loud),
        lambda x: torch.add(x, 1).as_subclass(torch.Tensor),
        "a Loud, whose __torch_function__",
    ),
    "named": (
        lambda x: x.refine_names("N", "C"),
        lambda x: x.sum("C").rename(None),
        "a tensor with named dimensions",
    ),
    "nested": (lambda x: torch.nested.nested_tensor(list(x)), lambda x: x.to_padded_tensor(0.0), "a nested tensor"),
    "jagged": (
        lambda x: torch.nested.nested_tensor(list(x), layout=torch.jagged),
        lambda x: (x * 2).values(),
        "a nested tensor",
    ),
    "sparse": (lambda x: x.relu().to_sparse(), lambda x: x.to_dense() * 2, "a sparse tensor"),
    "sparse_csr": (sparse_csr, lambda x: x.to_dense() * 2, "a sparse tensor"),
    "quantized": (quantized, lambda x: x.dequantize() * 2, "a quantized tensor"),
    "meta": (lambda x: x.to("meta"), lambda x: torch.zeros((x * 2).shape), "a meta tensor"),
    "zero": (lambda x: torch._efficientzerotensor(3, 4, device=x.device), lambda x: x + 1, "a tensor of zeros without memory"),
}
if not HAS_NAMES:
    del INPUTS["named"]
inputs = pytest.mark.parametrize("kind", INPUTS)


@inputs
def test_calls_with_such_an_input_run_eagerly(kind, device):
    make, step, words = INPUTS[kind]
    reasons = []
    graphed = pianola.graphed(step, warmup=1, on_fallback=reasons.append)
    for seed in range(4):
        same(graphed(make(rows(device, seed))), step(make(rows(device, seed))))
    assert len(reasons) == 1 and words in reasons[0] and "input 0" in reasons[0], reasons


@inputs
def test_such_a_sample_is_refused(kind, device):
    make, step, words = INPUTS[kind]
    with pytest.raises(pianola.UsageError) as refused:
        pianola.make_graphed_callables(step, (make(rows(device)),))
    assert words in refused.value.what and refused.value.fix


@inputs
def test_a_callable_refuses_such_an_input(kind, device):
    make, _, words = INPUTS[kind]
    graphed = pianola.make_graphed_callables(lambda x: x * 2, (rows(device),))
    with pytest.raises(pianola.GuardError) as refused:
        graphed(make(rows(device)))
    assert f"captured a plain tensor, received {words}" in str(refused.value)
    same(graphed(rows(device, 7)), rows(device, 7) * 2)


@inputs
def test_an_iteration_with_such_an_input(kind, device):
    make, step, words = INPUTS[kind]
    iteration = pianola.FullIteration(lambda batch: step(batch[0]), warmup=1)
    with pytest.raises(pianola.UsageError) as refused:
        iteration([make(rows(device))])
    assert words in refused.value.what
    reasons = []
    iteration = pianola.FullIteration(lambda batch: step(batch[0]), eager_fallback=True, on_fallback=reasons.append)
    same(iteration([make(rows(device))]), step(make(rows(device))))
    assert len(reasons) == 1 and words in reasons[0]


@inputs
def test_an_audit_with_such_an_input_ends_well(kind, device):
    make, step, _ = INPUTS[kind]
    pianola.audit(step, batches=[(make(rows(device, seed)),) for seed in range(2)])


def test_tangents_reach_the_eager_function(device):
    graphed = pianola.graphed(torch.sin, warmup=1)
    callable_ = pianola.make_graphed_callables(torch.sin, (rows(device),))
    for _ in range(3):
        graphed(rows(device))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(rows(device), torch.ones(3, 4, device=device))
        same(forward_ad.unpack_dual(graphed(dual)).tangent, rows(device).cos())
        view = forward_ad.make_dual(rows(device), torch.ones(3, 4, device=device)).view(3, 4)
        same(forward_ad.unpack_dual(graphed(view)).tangent, rows(device).cos())
        with pytest.raises(pianola.GuardError, match="received a dual tensor of forward-mode AD"):
            callable_(dual)
        same(graphed(rows(device)), rows(device).sin())  # no tangent: a replay
    assert sum(one.replays for one in graphed.info().signatures) >= 2


@pytest.mark.parametrize("make", [torch.conj, lambda x: torch.conj(x).imag], ids=["conj", "neg"])
def test_lazy_conjugates_and_negatives_are_plain(make, device):
    def numbers(seed):
        return torch.view_as_complex(torch.stack([rows(device, seed), rows(device, seed + 1)], -1))

    graphed = pianola.graphed(lambda x: x * x + 1, warmup=1)
    for seed in range(5):
        same(graphed(make(numbers(seed))), make(numbers(seed)) * make(numbers(seed)) + 1)
    assert sum(one.replays for one in graphed.info().signatures) >= 2


# --- Around a call ---


def test_a_dispatch_mode_sees_the_operations_of_a_graphed_function(device):
    reasons = []
    graphed = pianola.graphed(lambda x: x * 2 + 1, warmup=1, on_fallback=reasons.append)
    for seed in range(3):
        graphed(rows(device, seed))
    with CountingMode() as mode:
        result = graphed(rows(device))
    assert mode.calls >= 2 and len(reasons) == 1 and "under a TorchDispatchMode (CountingMode)" in reasons[0]
    same(result, rows(device) * 2 + 1)
    same(graphed(rows(device, 9)), rows(device, 9) * 2 + 1)


def test_a_function_mode_counts_in_a_graphed_function(device):
    reasons = []
    graphed = pianola.graphed(lambda x: torch.mul(x, 2), warmup=1, on_fallback=reasons.append)
    for seed in range(3):
        graphed(rows(device, seed))
    with DoublingMode():
        result = graphed(rows(device))
    same(result, rows(device) * 4)
    assert len(reasons) == 1 and "under a TorchFunctionMode (DoublingMode)" in reasons[0]
    same(graphed(rows(device)), rows(device) * 2)


def test_a_transform_goes_through_a_graphed_function(device):
    reasons = []
    graphed = pianola.graphed(lambda x: (x * x).sum(), warmup=1, on_fallback=reasons.append)
    for seed in range(3):
        graphed(rows(device, seed))
    same(torch.func.vmap(graphed)(rows(device)), (rows(device) * rows(device)).sum(1))
    same(torch.func.grad(graphed)(rows(device)), rows(device) * 2)
    assert all("torch.func" in reason for reason in reasons)


@pytest.mark.parametrize("mode", [CountingMode, DoublingMode])
def test_replays_and_callables_are_refused_under_a_mode(mode, device):
    x, kept = rows(device), {}
    graph = pianola.Graph(device)
    graph.capture(lambda: kept.update(y=x * 2))
    graphed = pianola.make_graphed_callables(lambda x: x * 2, (rows(device),))
    with mode():
        with pytest.raises(pianola.ReplayError, match=rf"replay\(\) was called under a Torch\w+ \({mode.__name__}\)"):
            graph.replay()
        with pytest.raises(pianola.GuardError, match=rf"now called under a Torch\w+ \({mode.__name__}\)"):
            graphed(x)
        with pytest.raises(pianola.Error, match=rf"was called under a Torch\w+ \({mode.__name__}\)"):
            pianola.make_graphed_callables(lambda x: x * 2, (x,))
    graph.replay()
    same(kept["y"], x * 2)
    same(graphed(x), x * 2)


def test_captures_are_refused_under_a_dispatch_mode_and_not_under_a_function_mode(device):
    x, kept = rows(device), {}
    with CountingMode():
        with pytest.raises(pianola.CaptureError, match=r"a capture was called under a TorchDispatchMode \(CountingMode\)"):
            pianola.Graph(device).capture(lambda: None)
        with pytest.raises(pianola.CaptureError, match="CountingMode"):
            pianola.CUDAGraph().capture_begin(device=device) if device.type == "cpu" else pianola.Graph(device).capture(int)
        with pytest.raises(pianola.UsageError, match=r"verify\(\) was called under a TorchDispatchMode"):
            pianola.verify(torch.sin, torch.sin, inputs=[(x,)])
        assert not pianola.audit(torch.sin, batches=[(x,)] * 2).ok
    graph = pianola.Graph(device)
    with DoublingMode():
        graph.capture(lambda: kept.update(y=torch.mul(x, 3)))  # what the mode makes of the step is the step
        graph.replay()
    graph.replay()
    same(kept["y"], x * 6)


def test_the_defaults_of_new_tensors_belong_to_the_signature(device):
    graphed = pianola.graphed(lambda x: x + torch.ones(4, device=device).sum().to(x.dtype), warmup=1)
    made = pianola.graphed(lambda x: torch.zeros(4), warmup=1)
    callable_ = pianola.make_graphed_callables(lambda x: x * torch.ones(4, device=device), (rows(device).double(),))
    for seed in range(3):
        graphed(rows(device, seed))
        assert made(rows(device)).dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        for _ in range(3):
            assert made(rows(device)).dtype == torch.float64
            with pytest.raises(pianola.GuardError, match="default dtype: captured Float, now Double"):
                callable_(rows(device).double())
    finally:
        torch.set_default_dtype(torch.float32)
    x = rows(device)
    for _ in range(4):
        with torch.device("meta"):
            assert made(x).device.type == "meta"
            with pytest.raises(pianola.GuardError, match="default device: captured none, now meta"):
                callable_(x.double())
    assert made(rows(device)).device.type == "cpu"


def test_a_default_device_does_not_keep_a_function_from_its_graph(device):
    with torch.device(device):
        graphed = pianola.graphed(lambda x: x + torch.ones(4), warmup=1)
        for seed in range(5):
            same(graphed(rows(device, seed)), rows(device, seed) + 1)
    assert sum(one.replays for one in graphed.info().signatures) >= 2


def test_a_recomputed_block_without_a_policy_is_captured(device):
    weight = torch.ones(4, 4, device=device, requires_grad=True)

    def step(x):
        y = checkpoint(lambda y: (y @ weight).sin(), x, use_reentrant=False)
        return torch.autograd.grad(y.sum(), weight)[0]

    graphed = pianola.graphed(step, warmup=1)
    for seed in range(5):
        same(graphed(rows(device, seed)), step(rows(device, seed)))
    assert sum(one.replays for one in graphed.info().signatures) >= 2
