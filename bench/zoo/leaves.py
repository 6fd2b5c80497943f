"""What a call returned and what a program became, as a flat list that can be compared bit by bit."""

import hashlib
import random

import numpy
import torch

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
DEEPEST = 8


def leaves(value, path="", depth=0):
    """(path, tensor, array or plain value) of all that is in it; what has a state_dict() counts by that."""
    if isinstance(value, (torch.Tensor, numpy.ndarray, numpy.generic, *PLAIN)):
        yield path, value
    elif isinstance(value, torch.nn.Module):
        yield from _of_module(value, path)
    elif isinstance(value, dict):
        for key in value:
            yield from leaves(value[key], f"{path}[{key!r}]", depth + 1)
    elif isinstance(value, list | tuple):
        for i, part in enumerate(value):
            yield from leaves(part, f"{path}[{i}]", depth + 1)
    elif hasattr(value, "state_dict"):
        yield from leaves(value.state_dict(), f"{path}{type(value).__name__}", depth + 1)
    elif hasattr(value, "__dict__") and depth < DEEPEST and not callable(value):
        for name in sorted(vars(value)):
            yield from leaves(vars(value)[name], f"{path}.{name}", depth + 1)


def _of_module(module, path):
    for name, parameter in module.named_parameters():
        yield f"{path}{name}", parameter
        yield f"{path}{name}.grad", parameter.grad
    for name, buffer in module.named_buffers():
        yield f"{path}{name}", buffer


def digest(value):
    """Equal where the bits are."""
    if isinstance(value, numpy.ndarray | numpy.generic):
        value = torch.from_numpy(numpy.array(value))
    if not isinstance(value, torch.Tensor):
        return repr(value)
    held = value.detach()
    held = held.to_dense() if held.layout != torch.strided else held
    data = held.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data if held.numel() else b""
    return str(value.dtype), tuple(value.shape), value.device.type, hashlib.blake2b(data, digest_size=16).hexdigest()


def digests(value):
    return [(path, digest(leaf)) for path, leaf in leaves(value)]


def first_difference(actual, expected):
    """Of two lists of digests: what differs first; "" where they are equal."""
    for (path, one), (other_path, other) in zip(actual, expected):
        if path != other_path:
            return f"{path or 'the result'} where eager has {other_path or 'the result'}"
        if one != other:
            plain = isinstance(one, str) and isinstance(other, str)
            return f"{path or 'the result'}: {one} where eager has {other}" if plain else path or "the result"
    return "" if len(actual) == len(expected) else f"{len(actual)} values where eager has {len(expected)}"


def count_differences(actual, expected):
    return sum(one != other for one, other in zip(actual, expected)) + abs(len(actual) - len(expected))


def seed(number):
    torch.manual_seed(number)
    random.seed(number)
    numpy.random.seed(number)


def generators():
    """The states of all default generators."""
    states = {"torch": torch.get_rng_state(), "random": repr(random.getstate()), "numpy": repr(numpy.random.get_state())}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return digests(states)
