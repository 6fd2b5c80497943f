"""Tensors whose operators are Python (__torch_dispatch__): those of a class of one's own keep a call eager (of torch.distributed's see
ranks_collectives_test.py); and storages that a step resizes."""

import pianola
import pytest
import torch
from torch.utils._pytree import tree_map

from twins import assert_same


class Scaled(torch.Tensor):
    """Whole numbers and a scale. What is computed with it is computed with their product."""

    @staticmethod
    def __new__(cls, values, scale, requires_grad=False):
        return torch.Tensor._make_wrapper_subclass(
            cls, values.shape, dtype=scale.dtype, device=values.device, requires_grad=requires_grad
        )

    def __init__(self, values, scale, requires_grad=False):
        self.values_of, self.scale_of = values, scale

    def __tensor_flatten__(self):
        return ["values_of", "scale_of"], None

    @classmethod
    def __tensor_unflatten__(cls, parts, context, size, stride):
        return cls(parts["values_of"], parts["scale_of"])

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.detach.default:
            return cls(args[0].values_of, args[0].scale_of)
        plain = tree_map(lambda one: one.values_of * one.scale_of if isinstance(one, cls) else one, (args, kwargs or {}))
        return function(*plain[0], **plain[1])


class Counted(Scaled):
    """Its Python counts on the host."""

    calls = []

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        cls.calls.append(str(function))
        return super().__torch_dispatch__(function, types, args, kwargs)


class Labelled(torch.Tensor):
    """Has memory of its own."""

    @staticmethod
    def __new__(cls, plain):
        return torch.Tensor._make_subclass(cls, plain)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        with torch._C._DisableTorchDispatch():
            return function(*args, **(kwargs or {}))


def weight(device, kind=Scaled):
    values = torch.randint(-8, 8, (4, 4), generator=torch.Generator().manual_seed(1)).to(device)
    return kind(values, torch.tensor(0.125, device=device))


def batches(device, count=12):
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(3, 4, generator=generator).to(device) for _ in range(count)]


def replays_of(graphed):
    return sum(one.replays for one in graphed.info().signatures)


@pytest.mark.parametrize("kind", [Scaled, Counted])
def test_a_class_of_ones_own_keeps_the_call_eager(device, kind):
    """What its Python reads beside its tensors, or counts, nobody watches."""
    quantized, reasons = weight(device, kind), []
    step = lambda x: torch.relu(x @ quantized) + 1  # noqa: E731
    graphed = pianola.graphed(step, on_fallback=reasons.append)
    for i, x in enumerate(batches(device)):
        if i == 8:
            quantized.scale_of.mul_(2)
        assert_same(f"call {i}", graphed(x), step(x))
    assert replays_of(graphed) == 0 and f"a {kind.__name__}" in reasons[0] and "PG1203" in reasons[0], reasons


@pytest.mark.parametrize("call", ["argument", "inside"])
def test_one_with_memory_of_its_own_keeps_the_call_eager(device, call):
    labelled, reasons = Labelled(torch.ones(3, 4, device=device)), []
    graphed = pianola.graphed((lambda x: x + 1) if call == "argument" else lambda x: x + labelled, on_fallback=reasons.append)
    for x in batches(device, 6):
        graphed(Labelled(x) if call == "argument" else x)
    assert replays_of(graphed) == 0 and "Labelled" in reasons[0] and "PG1203" in reasons[0], reasons


# --- Storages that a step resizes ---


def test_a_step_that_resizes_a_storage_stays_eager(device):
    """It may be memory that the step made, or whose size it asks for."""
    room, reasons = torch.empty(3, 4, device=device), []
    bytes_of_it = room.untyped_storage().size()

    def step(x):
        room.untyped_storage().resize_(bytes_of_it)
        torch.mul(x, 2, out=room)
        result = room.sin().sum(1)
        room.untyped_storage().resize_(0)
        return result

    graphed = pianola.graphed(step, on_fallback=reasons.append)
    for i, x in enumerate(batches(device)):
        assert_same(f"call {i}", graphed(x), (x * 2).sin().sum(1))
        assert room.untyped_storage().size() == 0
    assert replays_of(graphed) == 0 and "the step resizes a storage" in reasons[0], reasons


def test_a_capture_that_frees_its_own_memory_is_refused(device):
    x = torch.ones(3, 4, device=device)

    def step():
        y = x * 2
        z = y.sin()
        y.untyped_storage().resize_(0)
        return z

    with pytest.raises(pianola.CaptureError, match="resizes a storage"):
        pianola.Graph(device).capture(step)


def test_a_storage_is_resized_as_ever_outside_of_steps():
    one = torch.ones(4)
    assert one.untyped_storage().resize_(32) is not None and one.untyped_storage().size() == 32
    with pytest.raises(TypeError):
        one.untyped_storage().resize_()
