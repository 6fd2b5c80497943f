"""Whether what a call gives goes straight into what the function returns: `return float(loss)`, `return {"loss": float(loss)}`."""

import ast
import functools
import linecache
import os
from itertools import islice
from types import CodeType, FrameType
from typing import Iterator, Optional

from ._audit.files import HIDDEN, TORCH, kind_of_file

_PASSES_ON = os.path.join("torch", "utils", "_contextlib.py")  # torch.no_grad() and the like, as decorators


def is_returned(frame: FrameType, name: str) -> bool:
    """Whether the call that this frame is in is one of the builtin function of that name, whose result is returned as it is,
    or in a display, by the function that a graph is made of. False where the source is not known."""
    if name in frame.f_globals or not _is_outermost(frame):
        return False
    return _calls(frame.f_code, frame.f_lasti) == name


def _is_outermost(frame: FrameType) -> bool:
    outer = frame.f_back
    while outer is not None and outer.f_code.co_filename.endswith(_PASSES_ON):
        outer = outer.f_back
    return outer is not None and kind_of_file(outer.f_code.co_filename) & (HIDDEN | TORCH) == HIDDEN


@functools.lru_cache(maxsize=256)
def _calls(code: CodeType, instruction: int) -> str:
    """The name of what is called there, if its result is returned; else empty."""
    if not hasattr(code, "co_positions") or instruction < 0:  # before Python 3.11
        return ""
    at = next(islice(code.co_positions(), instruction // 2, None), None)
    lines = linecache.getlines(code.co_filename)
    if at is None or None in at or not lines:
        return ""
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:
        return ""
    return next((name for found, name in _returned_calls(tree, code) if found == at), "")


def _returned_calls(tree: ast.AST, code: CodeType) -> Iterator[tuple[tuple, str]]:
    """Where such calls are, and what they call."""
    for node in ast.walk(tree):
        value: Optional[ast.AST] = node.value if isinstance(node, ast.Return) else node.body if isinstance(node, ast.Lambda) else None
        for one in _parts(value):
            if isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id not in code.co_varnames:
                yield (one.lineno, one.end_lineno, one.col_offset, one.end_col_offset), one.func.id


def _parts(node: Optional[ast.AST]) -> Iterator[ast.AST]:
    """The expression, or those in a display."""
    if isinstance(node, (ast.Tuple, ast.List)):
        for one in node.elts:
            yield from _parts(one)
    elif isinstance(node, ast.Dict):
        for one in node.values:
            yield from _parts(one)
    elif node is not None:
        yield node
