"""Functions of torch that others stand in for, while a thread of ours needs it."""

import threading
import types
from typing import Any, Callable, Sequence

STANDS_IN_FOR = "_pianola_stands_in_for"


class Replaced:
    """Replaces attributes while at least one thread is inside, for all threads; what stands there passes on the calls of
    those that are not.

    A TorchFunctionMode would see calls of tensors as well, but torch and its users ask whether one is active, and compute
    something else then: nn.TransformerEncoderLayer leaves its fast path, torch.compile compiles anew.

    Args:
        all_of: (owner, name, what makes the new function of the original).
    """

    def __init__(self, all_of: Sequence[tuple[Any, str, Callable[[Callable[..., Any]], Callable[..., Any]]]]) -> None:
        self._all_of = all_of
        self._lock = threading.Lock()
        self._open = 0
        self._put_back: list[Callable[[], None]] = []

    def __enter__(self) -> None:
        with self._lock:
            if self._open == 0:
                self._put_back = [_replace(*one) for one in self._all_of]
            self._open += 1

    @property
    def is_open(self) -> bool:
        return self._open != 0

    def __exit__(self, *error: Any) -> None:
        with self._lock:
            self._open -= 1
            if self._open == 0:
                for put_back in self._put_back:
                    put_back()


def _replace(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[[], None]:
    own = vars(owner).get(name)
    original = getattr(owner, name)
    function = make(original)
    function.__dict__[STANDS_IN_FOR] = original
    setattr(owner, name, function)
    if own is None:  # inherited
        return lambda: delattr(owner, name)
    return lambda: setattr(owner, name, own)


def original_of(function: Any) -> Any:
    """What it stands in for; itself where it stands in for nothing."""
    return function.__dict__.get(STANDS_IN_FOR, function) if type(function) is types.FunctionType else function
