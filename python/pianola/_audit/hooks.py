"""Hooks of modules whose doings on the host happen once, when they are captured."""

import functools
from types import CodeType
from typing import Any, Iterable, Iterator, Optional

import torch

from .files import Place, place_of_code
from .findings import Findings, Found

KINDS = {
    "_forward_pre_hooks": "forward pre-hook",
    "_forward_hooks": "forward hook",
    "_backward_pre_hooks": "backward pre-hook",
    "_backward_hooks": "backward hook",
}
_EFFECTS = ("PG305", "PG604", "PG801", "PG802", "PG803", "PG804")


def hooks_of(module: torch.nn.Module) -> Iterator[tuple[str, Any, Place]]:
    """(kind, hook, where it is defined)."""
    for attribute, kind in KINDS.items():
        for hook in getattr(module, attribute, {}).values():
            code = code_of(hook)
            yield kind, hook, place_of_code(code) if code is not None else Place()


def code_of(hook: Any) -> Optional[CodeType]:
    """Of a function, a method, a partial, or an object that can be called."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    function = getattr(hook, "__func__", hook)
    code = getattr(function, "__code__", None) or getattr(getattr(type(hook), "__call__", None), "__code__", None)
    return code if isinstance(code, CodeType) else None


def add_hooks_with_effects(modules: Iterable[tuple[torch.nn.Module, str]], findings: Findings) -> None:
    """A hook that computes tensors is captured like everything else; one that was found to do more is told of."""
    effects = [found for found in findings if found.rule in _EFFECTS]
    for module, path in modules:
        for kind, hook, place in hooks_of(module):
            code = code_of(hook)
            inside = [one for one in effects if code is not None and _is_inside(one.place, code)]
            if inside:
                findings.add(
                    Found(
                        "PG1004",
                        place,
                        op=kind,
                        what=f"a {kind} of '{path}' does more than compute tensors",
                        evidence=inside[0].what,
                        module=path,
                    )
                )


def _is_inside(place: Place, code: CodeType) -> bool:
    lines = [line for _, _, line in code.co_lines() if line is not None]
    return place.file == code.co_filename and bool(lines) and code.co_firstlineno <= place.line <= max(lines)
