"""`python -m pianola bench scopes`: the table on one's own machine."""

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import NoReturn, Sequence

import torch

from ..errors import DeviceError, UsageError, refuse
from . import report
from .scopes import Settings, Table, measure
from .workloads import workloads

_FAILED = 1
_USAGE = 2
_HELP = """Trains an MLP and a small transformer eagerly, and with graphs of torch's and of Pianola's: of the whole iteration,
of forward and backward of the model, and of each submodule; and says what a step of each takes: self CPU time by
torch.profiler, time of the host, time until it is done. 'pianola bench scopes' has the rows of C++.
"""
_CODES = "exit code: 0 all rows were measured, 1 a row failed, 2 wrong usage, or no GPU"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pianola bench scopes", description=_HELP, epilog=_CODES)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="leave scopes.json and a Perfetto trace of each row here")
    parser.add_argument("--iterations", type=int, default=10, metavar="N", help="per sample and per profile (10)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: eager, and Pianola's tape (cuda)")
    parser.add_argument("--quick", action="store_true", help="small models, little work: only to see that it runs")
    return parser


def main(arguments: Sequence[str]) -> NoReturn:
    """Ends the process."""
    raise SystemExit(run(arguments))


def run(arguments: Sequence[str]) -> int:
    """The exit code."""
    options = _parser().parse_args(arguments)
    try:
        settings = _settings(options)
    except (UsageError, DeviceError) as error:
        return _fail(str(error), _USAGE)
    if settings.device.type == "cpu":
        torch.set_num_threads(1)  # the models are too small for more, and threads that wait for a core tell nothing
    print(report.heading(settings), flush=True)
    tables = measure(workloads(settings.device, options.quick), settings)
    print("\n".join(f"\n{report.to_text(table)}" for table in tables))
    print(f"\n{report.LEGEND}")
    if options.out is not None:
        _write(tables, settings, options.out, arguments)
    failed = sum(bool(row.error) for table in tables for row in table.rows)
    return _fail(f"{failed} rows failed, see above", _FAILED) if failed else 0


def _settings(options: argparse.Namespace) -> Settings:
    if options.iterations < 1:
        refuse(f"--iterations must be 1 or more, got {options.iterations}")
    if options.device == "cuda" and not torch.cuda.is_available():
        refuse(
            "there is no CUDA device to compare scopes on, and a CUDA graph needs one",
            "run on a machine with a GPU and a torch with CUDA, or add --device cpu for eager and Pianola's tape",
            kind="DeviceError",
        )
    if options.out is not None:
        _make(options.out)
    settings = Settings(torch.device(options.device), options.iterations, traces=options.out)
    return settings.quick() if options.quick else settings


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        refuse(f"cannot make the folder '{folder}': {error.strerror}", "name another one with --out")


def _write(tables: list[Table], settings: Settings, folder: Path, arguments: Sequence[str]) -> None:
    command = shlex.join(["python", "-m", "pianola", "bench", "scopes", *arguments])
    document = report.to_json(tables, settings, command)
    (folder / "scopes.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    traces = sum(row.trace is not None for table in tables for row in table.rows)
    print(f"{folder}: scopes.json, and {traces} traces *.json.gz for https://ui.perfetto.dev")


def _fail(sentence: str, code: int) -> int:
    print(f"pianola: {sentence}", file=sys.stderr)
    return code
