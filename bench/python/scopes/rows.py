"""Fills the table: each row is checked against eager, bit for bit, then all take turns, then each is profiled."""

import contextlib
import dataclasses
import gc
import itertools
import traceback
from pathlib import Path
from typing import Callable, Iterator, Optional, Sequence

import torch

from measuring import measure as time_of

from .contenders import WARMUP, Contender, Prepared, contenders
from .self_cpu import self_cpu_time
from .workloads import Training, Workload

_BURST = 10  # iterations between two waits for the device: fewer than fill its queue, which would hold the host up
_CHECKED_STEPS = 6  # after the warm-up: one captures at most, the others are replayed


@dataclasses.dataclass(frozen=True)
class Settings:
    device: torch.device
    iterations: int = 10  # of a sample of times, and of a profile
    rounds: int = 10  # samples of times
    profiles: int = 3
    traces: Optional[Path] = None  # folder; None: no traces

    def quick(self) -> "Settings":
        """The same with so little work that the figures mean nothing."""
        return dataclasses.replace(self, iterations=min(self.iterations, 3), rounds=2, profiles=1)


@dataclasses.dataclass
class Row:
    """Samples of one way to train, in microseconds of an iteration; none where there is an error."""

    contender: Contender
    host: list[float] = dataclasses.field(default_factory=list)
    wall: list[float] = dataclasses.field(default_factory=list)
    self_cpu: list[float] = dataclasses.field(default_factory=list)
    self_cpu_without_waits: list[float] = dataclasses.field(default_factory=list)
    trace: Optional[Path] = None
    error: str = ""


@dataclasses.dataclass
class Table:
    workload: Workload
    iterations: int  # of a sample
    rows: list[Row]

    @property
    def complete(self) -> list[Row]:
        return [row for row in self.rows if not row.error]

    def row(self, scope: str, owner: str) -> Optional[Row]:
        """None if there is none without an error."""
        found = (row for row in self.complete if (row.contender.scope, row.contender.owner) == (scope, owner))
        return next(found, None)


def measure(workloads: Sequence[Workload], settings: Settings) -> list[Table]:
    """One table each. A row that fails carries its error, and the others go on; eager training is what all are held against:
    what it raises comes out."""
    timed = [_timed(workload, settings) for workload in workloads]
    for table, loops in timed:  # after all times: a profiler that was there once may leave hooks in each launch
        for row in table.complete:
            with _reported_in(row):
                _profile(row, loops[row.contender.key], table.workload, settings)
    return [table for table, _ in timed]


_Loops = dict[str, Callable[[], object]]  # by the contender's key: one step, with the next batch


def _timed(workload: Workload, settings: Settings) -> tuple[Table, _Loops]:
    expected = _expected(workload)
    table = Table(workload, settings.iterations, [Row(one) for one in contenders(settings.device)])
    loops = {}
    for row in table.rows:
        with _reported_in(row):
            prepared = _checked(row.contender, workload, expected)
            loops[row.contender.key] = _loop(prepared, workload)
    _take_turns(table, loops, settings)
    return table, loops


@contextlib.contextmanager
def _reported_in(row: Row) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # whatever it is, the other rows are worth having
        traceback.print_exc()
        row.error = f"{type(error).__name__}: {error}"


_State = dict[str, torch.Tensor]


def _expected(workload: Workload) -> list[_State]:
    """What eager training leaves after each of the steps that are checked."""
    training = Training(workload)
    states = []
    for i in range(WARMUP + _CHECKED_STEPS):
        loss = training.step(*workload.batches[i % len(workload.batches)])
        states.append(_state(training, loss))
    return states[WARMUP:]


def _state(training: Training, loss: torch.Tensor) -> _State:
    return {"loss": loss.clone()} | {name: tensor.clone() for name, tensor in training.model.state_dict().items()}


def _checked(contender: Contender, workload: Workload, expected: Sequence[_State]) -> Prepared:
    training = Training(workload)
    prepared = contender.prepare(training, workload.batches)
    for i, wanted in enumerate(expected, WARMUP):
        loss = prepared.step(*workload.batches[i % len(workload.batches)])
        for name, tensor in _state(training, loss).items():
            if not torch.equal(tensor, wanted[name]):
                raise RuntimeError(f"'{name}' differs from eager's after step {i + 1}: times of wrong results mean nothing")
    if not prepared.is_replayed():
        raise RuntimeError("the steps went through no graph: these would be eager's times")
    return prepared


def _loop(prepared: Prepared, workload: Workload) -> Callable[[], object]:
    batches = itertools.cycle(workload.batches)
    return lambda: prepared.step(*next(batches))


def _take_turns(table: Table, loops: _Loops, settings: Settings) -> None:
    """Each round begins with another row; the first one does not count."""
    for turn in range(-1, settings.rounds):
        first = turn % len(table.rows)
        gc.collect()  # here, so that no row pays for what another left
        for row in table.rows[first:] + table.rows[:first]:
            if row.error:
                continue
            with _reported_in(row):
                taken = time_of(loops[row.contender.key], settings.iterations, _BURST)
                if turn >= 0:
                    row.host.append(taken["host"])
                    row.wall.append(taken["wall"])


def _profile(row: Row, loop: Callable[[], object], workload: Workload, settings: Settings) -> None:
    self_cpu_time(loop, 1, settings.device)  # the first profile of a process sets the profiler up
    for left in reversed(range(settings.profiles)):
        trace = None if left or settings.traces is None else settings.traces / f"{workload.name}_{row.contender.key}.json.gz"
        taken = self_cpu_time(loop, settings.iterations, settings.device, trace)
        row.self_cpu.append(taken.total)
        row.self_cpu_without_waits.append(taken.total - taken.waits)
        row.trace = trace
