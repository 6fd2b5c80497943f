"""numpy.random.seed in the code that ran: NumPy's functions are invisible to a profile function."""

import dis
import sys
import types
from types import CodeType
from typing import Any, Iterable, Iterator

from .files import Place
from .locate import lines_of

_NOTHING = object()


def seeding_lines(executed: Iterable[tuple[CodeType, dict]]) -> Iterator[Place]:
    """Lines that name numpy.random.seed, or the seed method of NumPy's global state."""
    seeds = _seeds()
    for code, variables in executed if seeds else ():
        if "seed" not in code.co_names:
            continue
        for line, instructions in lines_of(code):
            if any(value in seeds for value in _values(instructions, variables)):
                yield Place(code.co_name, code.co_filename, line)


def _seeds() -> list[Any]:
    random = sys.modules.get("numpy.random")
    return [random.seed, random.set_state] if random is not None else []


def _values(instructions: list[dis.Instruction], variables: dict) -> Iterator[Any]:
    """What chains of names stand for: np, np.random, np.random.seed; only through modules, which attributes do not change."""
    at: Any = _NOTHING
    for instruction in instructions:
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            at = variables.get(instruction.argval, _NOTHING)
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and isinstance(at, types.ModuleType):
            at = getattr(at, instruction.argval, _NOTHING)
        else:
            at = _NOTHING
        if callable(at):
            yield at
