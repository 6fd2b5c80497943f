"""The table as text, and as JSON."""

import platform
import statistics
from typing import Any, Optional

import torch

from .._load import _C
from .contenders import SCOPES
from .scopes import Row, Settings, Table

TITLE = "What a training step takes, by the scope of its graph"
CPU_NOTE = (
    "torch's graphs need a GPU: their rows are left out; Pianola's are the tape's, whose replays the profiler does not see"
)
LEGEND = """us per iteration, medians. self CPU: what torch.profiler's key_averages() calls "Self CPU time total". It counts
operations and calls of CUDA's runtime, not Python or C++ between them: compare APIs by host. no waits: the same without
waiting for the device. host: until the step is issued, wall: until it is done, both without a profiler. x eager, x torch:
how many times as fast, by wall, as eager and as torch's graph of the same scope. All rows computed what eager does, bit for
bit."""
_COLUMNS = ("scope", "API", "self CPU", "no waits", "host", "wall", "x eager", "x torch")
_WORDS = 2  # columns of words, to the left; figures are to the right


def machine(device: torch.device) -> dict[str, str]:
    """What the figures depend on."""
    on_gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if on_gpu else f"CPU, threads: {torch.get_num_threads()}",
        "torch": torch.__version__,
        **({"cuda": torch.version.cuda or ""} if on_gpu else {}),
        "pianola": _C.version(),
        "python": platform.python_version(),
    }


def heading(settings: Settings) -> str:
    """The title, the machine, and how often was measured."""
    facts = machine(settings.device)
    words = [facts["device"], f"torch {facts['torch']}"]
    words += [f"CUDA {facts['cuda']}"] if "cuda" in facts else []
    words += [f"Pianola {facts['pianola']}", f"Python {facts['python']}"]
    rounds, profiles = settings.rounds, settings.profiles
    sampling = f"samples of {settings.iterations} iterations: {rounds} of times, rows in turn; {profiles} under the profiler"
    notes = [] if settings.device.type == "cuda" else [f"Note: {CPU_NOTE}."]
    return "\n".join([TITLE, ", ".join(words), sampling, *notes])


def to_text(table: Table) -> str:
    lines = [_COLUMNS, *(_cells(table, row) for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    drawn = [_drawn(line, widths) for line in lines]
    rule = "  ".join("-" * width for width in widths)
    errors = [f"failed: {row.contender.words}: {row.error}" for row in table.rows if row.error]
    return "\n".join([table.workload.title, drawn[0], rule, *drawn[1:], *errors])


def _cells(table: Table, row: Row) -> tuple[str, ...]:
    words = (SCOPES[row.contender.scope], row.contender.api)
    if row.error:
        return (*words, "failed", *[""] * (len(_COLUMNS) - len(words) - 1))
    times = (row.self_cpu, row.self_cpu_without_waits, row.host, row.wall)
    speedups = (over_eager(table, row), over_torch(table, row))
    return (
        *words,
        *(f"{statistics.median(samples):.0f}" for samples in times),
        *("" if speedup is None else f"{speedup:.2f}" for speedup in speedups),
    )


def _drawn(cells: tuple[str, ...], widths: list[int]) -> str:
    words = [cell.ljust(width) for cell, width in zip(cells[:_WORDS], widths)]
    figures = [cell.rjust(width) for cell, width in zip(cells[_WORDS:], widths[_WORDS:])]
    return "  ".join(words + figures).rstrip()


def over_eager(table: Table, row: Row) -> Optional[float]:
    return table.wall_speedup(row, table.row("eager", "none"))


def over_torch(table: Table, row: Row) -> Optional[float]:
    """For Pianola's rows, over torch's of the same scope."""
    return table.wall_speedup(row, table.row(row.contender.scope, "torch")) if row.contender.owner == "pianola" else None


def to_json(tables: list[Table], settings: Settings, command: str) -> dict[str, Any]:
    """Times are in microseconds of an iteration."""
    return {
        "title": TITLE,
        "machine": machine(settings.device),
        "command": command,
        "unit": "us",
        "iterations_per_sample": settings.iterations,
        "notes": [] if settings.device.type == "cuda" else [CPU_NOTE],
        "tables": [
            {
                "model": table.workload.name,
                "title": table.workload.title,
                "rows": [_row_json(table, row) for row in table.rows],
            }
            for table in tables
        ],
    }


def _row_json(table: Table, row: Row) -> dict[str, Any]:
    named = {"scope": row.contender.scope, "owner": row.contender.owner, "api": row.contender.api}
    if row.error:
        return named | {"error": row.error}
    times = {
        "self_cpu": row.self_cpu,
        "self_cpu_without_waits": row.self_cpu_without_waits,
        "host": row.host,
        "wall": row.wall,
    }
    return {
        **named,
        **{name: {"median": statistics.median(samples), "samples": samples} for name, samples in times.items()},
        "speedup_over_eager": over_eager(table, row),
        "speedup_over_torch": over_torch(table, row),
        "trace": None if row.trace is None else row.trace.name,
    }
