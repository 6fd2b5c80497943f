"""`python -m pianola audit script.py:function`: audits a function of a script."""

import argparse
import contextlib
import sys
import traceback
from pathlib import Path
from typing import Any, Iterator, NoReturn, Optional, Sequence

from .._load import _C
from ..errors import UsageError
from ..scripts import check_writable, ended_itself, load, with_arguments
from .audit import audit

_FAILED = 1
_USAGE = 2
_BESIDE = ("batches", "between", "generators", "callables")
_HELP = """Runs a function of a script a few times and tells all that would break a capture of it as a CUDA graph, or make its
replays wrong. The script is run as a module, so that its `if __name__ == "__main__"` part is not. Variables and functions
that stand beside the function count as arguments of pianola.audit: batches (what it is called with, in turn), between
(called between two runs), generators, callables. A function whose name begins with make_ is called first: it returns the
step, or the step and a dict of such arguments.
"""
_CODES = "exit code: 0 no hazard that breaks a capture or its numbers, 3 hazards, 1 the script fails, 2 wrong usage"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pianola audit", description=_HELP, epilog=_CODES)
    parser.add_argument("target", metavar="script.py:function", help="the step, or a function make_... that returns it")
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON; -: to the standard output, not the text")
    parser.add_argument("--sarif", metavar="FILE", help="as SARIF 2.1.0, which editors and code hosts show at the lines")
    parser.add_argument("--iterations", type=int, metavar="N", help="runs that are watched (3)")
    parser.add_argument("--warmup", type=int, metavar="N", help="runs before, which are not (1)")
    parser.add_argument("--capture-warmup", type=int, metavar="N", help="warm-up runs that the capture is going to have (3)")
    parser.add_argument("--device", help="where the graph is going to be: cpu, cuda, cuda:1")
    parser.add_argument("--no-trial", action="store_true", help="do not try a capture")
    parser.add_argument("--no-sources", action="store_true", help="do not look for source lines, which is faster")
    return parser


def main(arguments: Optional[Sequence[str]] = None) -> NoReturn:
    """Ends the process."""
    raise SystemExit(run(arguments))


def run(arguments: Optional[Sequence[str]] = None) -> int:
    """The exit code."""
    options = _parser().parse_args(arguments)
    if options.json == options.sarif == "-":
        _parser().error("only one of --json and --sarif can go to the standard output")
    to_output = "-" in (options.json, options.sarif)
    try:
        check_writable(options.json, options.sarif)
        with _prints_elsewhere(to_output):
            report = _audited(options)
    except UsageError as error:
        return _fail(str(error), _USAGE)
    except SystemExit as end:
        return _fail(ended_itself(end), _FAILED)
    except Exception:
        traceback.print_exc()
        return _fail("the script fails", _FAILED)
    _write(report, options, to_output)
    return int(report.exit_code)


def _audited(options: argparse.Namespace) -> "_C.AuditReport":
    module, step = load(options.target)
    chosen: dict[str, Any] = {name: getattr(module, name) for name in _BESIDE if hasattr(module, name)}
    if options.target.rpartition(".")[2].rpartition(":")[2].startswith("make_"):
        step, more = with_arguments(step())
        chosen.update(more)
    if callable(chosen.get("batches")):
        chosen["batches"] = chosen["batches"]()
    for name in ("iterations", "warmup", "capture_warmup", "device"):
        if getattr(options, name) is not None:
            chosen[name] = getattr(options, name)
    if options.no_trial:
        chosen["trial"] = False
    if options.no_sources:
        chosen["sources"] = False
    return audit(step, **chosen)


@contextlib.contextmanager
def _prints_elsewhere(to_output: bool) -> Iterator[None]:
    """What the script prints does not come between the lines of a machine's output."""
    with contextlib.redirect_stdout(sys.stderr) if to_output else contextlib.nullcontext():
        yield


def _write(report: "_C.AuditReport", options: argparse.Namespace, to_output: bool) -> None:
    for file, text in ((options.json, report.to_json), (options.sarif, report.to_sarif)):
        if file == "-":
            print(text())
        elif file is not None:
            Path(file).write_text(text() + "\n", encoding="utf-8")
    if not to_output:
        print(report.to_text(), end="")


def _fail(sentence: str, code: int) -> int:
    print(f"pianola: {sentence}", file=sys.stderr)
    return code
