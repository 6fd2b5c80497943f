"""Decisions of a step on a scaler's scale: `if scale <= scaler.get_scale(): scheduler.step()`.

The scale is known after the replay only. Where all that hangs on it are steps of schedulers, that is early enough: they are made then,
or not. That nothing else hangs on it the code says: the block of the `if` consists of these calls, and has no else.
"""

import dis
from types import FrameType
from typing import Any, Callable, NamedTuple, Optional

_SETUP = ("PUSH_NULL", "PRECALL", "KW_NAMES", "CACHE", "NOP", "NOT_TAKEN", "EXTENDED_ARG", "POP_TOP")
_LEAVES = ("RETURN_VALUE", "RETURN_CONST", "JUMP_BACKWARD", "JUMP_ABSOLUTE")


class Block(NamedTuple):
    """Of an `if` without else, that consists of calls."""

    begin: int  # offsets of instructions
    end: int
    calls: int


def block_of(frame: FrameType, outcome: bool) -> Optional[Block]:
    """The block that runs next in a frame, which asks for the truth of something; None where it does anything else with it."""
    instructions = list(dis.get_instructions(frame.f_code))
    at = next(i for i, one in enumerate(instructions) if one.offset == frame.f_lasti)
    at += instructions[at].opname == "TO_BOOL"
    jump = instructions[at]
    jumps_if_true, jumps_if_false = "IF_TRUE" in jump.opname, "IF_FALSE" in jump.opname
    if not jump.opname.startswith("POP_JUMP") or jumps_if_true == jumps_if_false or outcome == jumps_if_true:
        return None
    target = next((i for i, one in enumerate(instructions) if one.offset == jump.argval), 0)
    block = _without_exit(instructions[at + 1 : target], instructions[target:])
    if not block or block[-1].opname != "POP_TOP" or not all(map(_is_part_of_call, block)):
        return None
    return Block(block[0].offset, block[-1].offset, sum(map(_is_call, block)))


def _without_exit(block: list[dis.Instruction], then: list[dis.Instruction]) -> list[dis.Instruction]:
    """Both ways may have a way out of their own, the same for both."""
    if not block or block[-1].opname not in _LEAVES:
        return block
    for size in (1, 2):
        if [(one.opname, one.argval) for one in block[-size:]] == [(one.opname, one.argval) for one in then[:size]]:
            return block[:-size]
    return []


def _is_call(one: dis.Instruction) -> bool:
    return one.opname.startswith("CALL") and one.opname != "CALL_INTRINSIC_1"


def _is_part_of_call(one: dis.Instruction) -> bool:
    return one.opname in _SETUP or one.opname.startswith("LOAD_") or _is_call(one)


class Conditional:
    """A scheduler's step that hangs on a decision. The captured run makes it.

    Args:
        run: makes it.
        put_back: takes the one of the captured run back.
    """

    def __init__(self, run: Callable[[], None], put_back: Callable[[], None]) -> None:
        self._run = run
        self._put_back: Optional[Callable[[], None]] = put_back
        self._has_run = True

    def take_back(self) -> None:
        if self._put_back is not None:
            self._put_back()
            self._put_back, self._has_run = None, False

    def follow(self, is_made: bool) -> None:
        """After a replay."""
        has_run, self._has_run = self._has_run, False
        if has_run and not is_made:
            self.take_back()
        elif is_made and not has_run:
            self._run()
        self._put_back = None


class Decision:
    """One that a captured run has taken."""

    def __init__(self, node: Any, outcome: bool, where: str, frame: FrameType, block: Block) -> None:
        self.node = node  # what is compared
        self.outcome = outcome
        self.where = where
        self.steps: list[Conditional] = []
        self._frame: Optional[FrameType] = frame
        self._block = block

    def covers(self, frame: FrameType) -> bool:
        return frame is self._frame and self._block.begin <= frame.f_lasti <= self._block.end

    def end(self) -> bool:
        """The run is over. Whether it has made all calls of the block, and all are steps."""
        self._frame = None
        return len(self.steps) == self._block.calls


class Decisions:
    """Those of a captured run."""

    def __init__(self) -> None:
        self.taken: list[Decision] = []
        self.offence = ""  # where something hangs on one that replays cannot leave out

    def decision_at(self, frame: FrameType) -> Optional[Decision]:
        return next((one for one in self.taken if one.covers(frame)), None)

    def note_part(self) -> None:
        """A part of the host begins that hangs on none: those that do are made when the replay is over."""
        late = next((one for one in self.taken if one.steps), None)
        if late is not None:
            self.offence = self.offence or late.where

    def end(self) -> None:
        for one in self.taken:
            if not one.end():
                self.offence = self.offence or one.where
