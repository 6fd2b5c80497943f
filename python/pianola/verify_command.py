"""`python -m pianola verify script.py:function`: verifies a function of a script."""

import argparse
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn, Optional, Sequence

from ._load import _C
from .errors import UsageError
from .scripts import check_writable, ended_itself, load, with_arguments
from .verification import verify

_FAILED = 1
_USAGE = 2
_BESIDE = ("graphed", "state", "inputs", "between", "reset", "generators", "tolerance")
_HELP = """Runs a function of a script eagerly and graphed from the same state, and compares all that they leave behind. The
script is run as a module, so that its `if __name__ == "__main__"` part is not. Variables and functions that stand beside the
function count as arguments of pianola.verify: graphed (without it the function is captured with pianola.Graph), state,
inputs, between, reset, generators, tolerance. A function whose name begins with make_ is called first: it returns the
eager step, or the step and a dict of such arguments.
"""
_CODES = "exit code: 0 equal, 3 different or not deterministic, 1 a side or the script fails, 2 wrong usage"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pianola verify", description=_HELP, epilog=_CODES)
    parser.add_argument("target", metavar="script.py:function", help="the eager step, or a function make_... that returns it")
    parser.add_argument("--steps", type=int, metavar="N", help="steps of each side (5)")
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON; -: to the standard output, not the text")
    parser.add_argument("--no-narrow", action="store_true", help="do not look for the operation where a difference starts")
    parser.add_argument("--no-poison", action="store_true", help="leave memory that nothing holds as it is")
    return parser


def main(arguments: Optional[Sequence[str]] = None) -> NoReturn:
    """Ends the process."""
    raise SystemExit(run(arguments))


def run(arguments: Optional[Sequence[str]] = None) -> int:
    """The exit code."""
    options = _parser().parse_args(arguments)
    try:
        check_writable(options.json)
        report = _verified(options)
    except UsageError as error:
        return _fail(str(error), _USAGE)
    except SystemExit as end:
        return _fail(ended_itself(end), _FAILED)
    except Exception:
        traceback.print_exc()
        return _fail("the script fails", _FAILED)
    print(report.to_json() if options.json == "-" else report.to_text(), end="\n" if options.json == "-" else "")
    if options.json not in (None, "-"):
        Path(options.json).write_text(report.to_json() + "\n", encoding="utf-8")
    return int(report.exit_code)


def _verified(options: argparse.Namespace) -> "_C.VerifyReport":
    module, step = load(options.target)
    chosen: dict[str, Any] = {name: getattr(module, name) for name in _BESIDE if hasattr(module, name)}
    if options.target.rpartition(".")[2].rpartition(":")[2].startswith("make_"):
        step, more = with_arguments(step())
        chosen.update(more)
    if options.steps is not None:
        chosen["steps"] = options.steps
    if options.no_narrow:
        chosen["narrow"] = False
    if options.no_poison:
        chosen["poison"] = False
    return verify(step, **chosen)


def _fail(sentence: str, code: int) -> int:
    print(f"pianola: {sentence}", file=sys.stderr)
    return code
