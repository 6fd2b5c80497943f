"""Changes what a step reads besides tensors after its capture, and compares with the same function called as it is."""

import dataclasses

import pytest
import torch

import pianola

AT = (4, 50, 500)  # calls before which the thing changes


@dataclasses.dataclass
class Case:
    """`change(value)` gives what the step reads another value; `arguments()` are passed after the tensor."""

    step: object
    change: object
    arguments: object = tuple
    values: tuple = (1.5, 2.5, -3.0, 1.5)
    undo: object = lambda: None


def same_bits(one, other):
    if one.dtype != other.dtype or not one.is_floating_point():
        return one.dtype == other.dtype and torch.equal(one, other)
    return one.shape == other.shape and one.detach().cpu().numpy().tobytes() == other.detach().cpu().numpy().tobytes()


def eagerly(one, x, arguments):
    """What the step gives, without a trace in torch's generators."""
    state = torch.get_rng_state(), torch.cuda.get_rng_state() if x.is_cuda else None
    result = one.step(x, *arguments)
    torch.set_rng_state(state[0])
    if x.is_cuda:
        torch.cuda.set_rng_state(state[1])
    return result


def check_graphed(one, device, at=AT):
    """@pianola.graphed gives eager's result before and after each change, and replays in between."""
    try:
        one.change(one.values[0])
        reasons = []
        graphed = pianola.graphed(one.step, on_fallback=reasons.append)
        values = iter(one.values[1:])
        x = torch.linspace(-1, 1, 4, device=device)
        for call in range(1, at[-1] + 6):
            if call in at:
                one.change(next(values))
            x.add_(0.01)
            expected = eagerly(one, x, one.arguments())
            assert same_bits(graphed(x, *one.arguments()), expected), f"call {call}: {reasons}"
        if not reasons:
            assert sum(signature.replays for signature in graphed.info().signatures) > at[-1] * 4 // 5, str(graphed.info())
        return graphed
    finally:
        one.undo()


def check_iteration(one, device):
    """The same of pianola.FullIteration."""
    if one.arguments is not tuple:
        pytest.skip("an iteration takes microbatches alone")
    try:
        one.change(one.values[0])
        reasons = []
        iteration = pianola.FullIteration(lambda batches: one.step(batches[0]), outputs="clone", warmup=2, eager_fallback=True,
                                          on_fallback=reasons.append)
        values = iter(one.values[1:])
        x = torch.linspace(-1, 1, 4, device=device)
        for call in range(1, 24):
            if call in (4, 12, 20):
                one.change(next(values))
            x.add_(0.01)
            expected = eagerly(one, x, ())
            assert same_bits(iteration([x]), expected), f"call {call}: {reasons}"
        if not reasons:
            assert sum(signature.replays for signature in iteration.info().signatures) > 8, str(iteration.info())
    finally:
        one.undo()
