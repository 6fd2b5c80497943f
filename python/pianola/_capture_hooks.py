"""Transformer Engine's capture_time_hooks: hooks that run around each warm-up and capture pass, outside the recording."""

from typing import Any, Callable, Optional, Sequence

from ._errors import refuse
from ._weakly import WhileCapturing

_NAMES = {
    "forward_pre_hooks": "before_forward",
    "forward_hooks": "after_forward",
    "backward_pre_hooks": "before_backward",
    "backward_hooks": "after_backward",
}


def capture_hooks(
    hooks: Optional[Sequence[Optional[dict[str, Any]]]], targets: list[Any], hold: WhileCapturing
) -> list[dict[str, Callable[[], None]]]:
    """From dicts of {kind: {id: hook(module)}} to one action per moment and callable."""
    if hooks is None:
        return []
    if len(hooks) != len(targets):
        refuse(f"got {len(hooks)} capture_time_hooks for {len(targets)} callables", "pass one per callable; None for no hooks")
    return [_of_one(entry or {}, target, hold) for entry, target in zip(hooks, targets)]


def _of_one(entry: dict[str, Any], target: Any, hold: WhileCapturing) -> dict[str, Callable[[], None]]:
    unknown = sorted(entry.keys() - _NAMES.keys())
    if unknown:
        refuse(f"capture_time_hooks has unknown keys {unknown}", f"known are {', '.join(_NAMES)}")
    return {_NAMES[kind]: hold.hold(_run_all(list(hooks.values()), target)) for kind, hooks in entry.items()}


def _run_all(hooks: list[Callable[[Any], None]], target: Any) -> Callable[[], None]:
    def run() -> None:
        for hook in hooks:
            if hook(target) is not None:
                refuse(
                    f"the capture-time hook {getattr(hook, '__name__', hook)!r} returned a value",
                    "a capture-time hook must not return a value: nothing can be changed by it",
                )

    return run
