"""On which line something changes: one more run of the step, in which each line of the user's is followed by a look."""

import dis
import sys
from types import CodeType, FrameType
from typing import Any, Callable, Iterable, Optional

from . import files
from .files import Place
from .marks import Mark, mark_of, same
from .reach import Walk


class Locator:
    """Looks at places after each line that a step runs.

    Args:
        walk: with a trail, made right before the run.
        paths: the places.
    """

    def __init__(self, walk: Walk, paths: Iterable[str]) -> None:
        self.found: dict[str, Place] = {}
        self._looks: dict[str, Callable[[], Optional[Mark]]] = {}
        for path in paths:
            steps = walk.steps_to(path)
            if steps is not None:
                self._looks[path] = lambda steps=steps: _look(steps)  # type: ignore[misc]
        self._marks = {path: look() for path, look in self._looks.items()}
        self._last = Place()

    def run(self, step: Callable[[], Any]) -> Any:
        previous = sys.gettrace()
        sys.settrace(self._on_call)
        try:
            return step()
        finally:
            sys.settrace(previous)
            self._look()

    def _on_call(self, frame: FrameType, event: str, argument: Any) -> Optional[Callable]:
        if not files.is_users(frame.f_code):
            return None
        self._look()
        self._last = _place(frame)
        return self._on_line

    def _on_line(self, frame: FrameType, event: str, argument: Any) -> Callable:
        self._look()
        caller = files.place_of_frame(frame.f_back) if event == "return" else Place()
        self._last = caller if caller.known else _place(frame)
        return self._on_line

    def _look(self) -> None:
        """What is new since the last look was done by the last line."""
        for path, look in list(self._looks.items()):
            now = look()
            if not same(self._marks[path], now):
                del self._looks[path]
                self.found[path] = self._last


def _place(frame: FrameType) -> Place:
    return Place(frame.f_code.co_name, frame.f_code.co_filename, frame.f_lineno)


def _look(steps: list) -> Optional[Mark]:
    value: Any = None
    for step in steps:
        value = step.follow(value)
    return mark_of(value)


_CHANGES = frozenset(
    "append appendleft extend extendleft insert pop popleft popitem remove clear add discard update setdefault sort reverse "
    "rotate difference_update intersection_update symmetric_difference_update subtract".split()
)
_STORES = ("STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF", "STORE_NAME", "DELETE_ATTR", "DELETE_GLOBAL", "DELETE_DEREF")


def assignment_of(name: str, codes: Iterable[CodeType]) -> Place:
    """The first line that assigns to something of that name, to an entry of it or under that key, or calls a method that
    changes it."""
    for code in codes:
        for line, instructions in lines_of(code):
            names = [one.argval for one in instructions if isinstance(one.argval, str)]
            stored = any(one.opname in _STORES and one.argval == name for one in instructions)
            entry = any(one.opname in ("STORE_SUBSCR", "DELETE_SUBSCR") for one in instructions)
            if stored or (name in names and (entry or not _CHANGES.isdisjoint(names))):
                return Place(code.co_name, code.co_filename, line)
    return Place()


def first_mention(name: str, codes: Iterable[CodeType]) -> Place:
    """The first line that reads something of that name."""
    for code in codes:
        for line, instructions in lines_of(code):
            if any(one.opname.startswith("LOAD_") and one.argval == name for one in instructions):
                return Place(code.co_name, code.co_filename, line)
    return Place()


def names_on(file: str, line: int, codes: Iterable[CodeType]) -> set[str]:
    """What a line of these functions names."""
    here = [instructions for code in codes if code.co_filename == file for at, instructions in lines_of(code) if at == line]
    return {one.argval for instructions in here for one in instructions if isinstance(one.argval, str)}


def lines_of(code: CodeType) -> list[tuple[int, list[dis.Instruction]]]:
    """The instructions of each line, in the order in which the lines begin."""
    begins = dict(dis.findlinestarts(code))
    found: list[tuple[int, list[dis.Instruction]]] = []
    for instruction in dis.get_instructions(code):
        line = begins.get(instruction.offset)
        if line is not None or not found:
            found.append((line or code.co_firstlineno, []))
        found[-1][1].append(instruction)
    return found
