"""Hooks around passes: Transformer Engine's capture_time_hooks, around warm-up and capture, and replay_hooks, around each replay."""

import functools
import weakref
from typing import Any, Callable, Optional, Sequence

import torch

from ._errors import refuse
from ._weakly import WhileCapturing

Given = Optional[Sequence[Optional[dict[str, Any]]]]

_NAMES = {
    "forward_pre_hooks": "before_forward",
    "forward_hooks": "after_forward",
    "backward_pre_hooks": "before_backward",
    "backward_hooks": "after_backward",
}


def capture_hooks(hooks: Given, targets: list[Any], hold: WhileCapturing) -> list[dict[str, Callable[[], None]]]:
    """From dicts of {kind: {id: hook(module)}} to one action per moment and callable."""
    return [
        {_NAMES[kind]: hold.hold(_run_all(list(those.values()), functools.partial(_itself, target), kind)) for kind, those in entry.items()}
        for entry, target in zip(_checked(hooks, targets, "capture_time_hooks"), targets)
    ]


class ReplayHooks:
    """Those of one callable, for C++, which does not keep them: who holds the graphs does, or a model that a hook looks at would
    never be freed."""

    def __init__(self, entry: dict[str, Any], target: Any) -> None:
        find = weakref.ref(target) if isinstance(target, torch.nn.Module) else functools.partial(_itself, target)
        self._actions = {_NAMES[kind]: _run_all(list(those.values()), find, kind) for kind, those in entry.items()}

    def for_graphs(self) -> dict[str, Callable[[], None]]:
        mine = weakref.ref(self)

        def run(moment: str) -> Callable[[], None]:
            def action() -> None:
                alive = mine()
                if alive is None:
                    refuse(
                        "the graphed callable that replay_hooks belong to is gone, and a backward of one of its calls wants them",
                        "keep the callable until its last backward has run",
                    )
                alive._actions[moment]()

            return action

        return {moment: run(moment) for moment in self._actions}


def replay_hooks(hooks: Given, targets: list[Any]) -> list[ReplayHooks]:
    return [ReplayHooks(entry, target) for entry, target in zip(_checked(hooks, targets, "replay_hooks"), targets)]


def _checked(hooks: Given, targets: list[Any], name: str) -> list[dict[str, Any]]:
    if hooks is None:
        return []
    if not isinstance(hooks, (list, tuple)) or not all(_is_entry(entry) for entry in hooks):
        refuse(
            f"{name} must be a list with a dict for each callable, or None",
            "write [{'forward_pre_hooks': {0: hook}}], where a hook is a function of the module",
        )
    if len(hooks) != len(targets):
        callables = f"{len(targets)} callable" + ("" if len(targets) == 1 else "s")
        refuse(f"got {len(hooks)} {name} for {callables}", "pass one per callable; None for no hooks")
    for entry in hooks:
        unknown = sorted((entry or {}).keys() - _NAMES.keys())
        if unknown:
            refuse(f"{name} has unknown keys {unknown}", f"known are {', '.join(_NAMES)}")
    return [entry or {} for entry in hooks]


def _is_entry(entry: Any) -> bool:
    if entry is None:
        return True
    return isinstance(entry, dict) and all(isinstance(those, dict) and all(map(callable, those.values())) for those in entry.values())


def _itself(target: Any) -> Any:
    return target


def _run_all(hooks: list[Callable[[Any], None]], find: Callable[[], Any], kind: str) -> Callable[[], None]:
    def run() -> None:
        target = find()
        for hook in hooks:
            if hook(target) is not None:
                refuse(
                    f"the hook {getattr(hook, '__name__', hook)!r} of {kind} returned a value",
                    "such a hook must not return a value: nothing can be changed by it",
                )

    return run
