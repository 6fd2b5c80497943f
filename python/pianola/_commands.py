"""What `pianola audit`, `verify`, `memory`, `profile` and `decide` do with a function of a Python file. Their help is the program's."""

import argparse
import contextlib
import dataclasses
import sys
import traceback
from pathlib import Path
from typing import Any, Callable, NoReturn, Optional, Sequence

import torch

from ._audit.audit import audit
from ._errors import UsageError
from ._memory import capture_memory, predict_memory, watch_memory
from ._predict_scopes import predict_scopes
from ._profile import profile
from ._try_scopes import TriedScopes, try_scopes
from ._scripts import check_writable, ended_itself, load, with_arguments
from ._verify import verify

_FAILED = 1
_USAGE = 2


def _device(text: str) -> Optional[str]:
    return None if text == "auto" else text


@dataclasses.dataclass(frozen=True)
class _Command:
    judge: Callable[..., Any]  # gives a report
    beside: tuple[str, ...]  # what stands beside the function under these names are arguments of `judge`
    reports: tuple[str, ...]  # options that name files; a report has to_...() of each
    options: dict[str, Any]  # name -> type of its value; of a flag False or True, the argument's value


_PROFILE = _Command(profile, (), ("json", "html"),
                    {"--warmup": int, "--iterations": int, "--modules": True, "--trace": str})  # fmt: skip
_MEMORY = _Command(predict_memory, ("batches",), ("json", "html"), {"--warmup": int, "--device": _device})
_VARIANTS = {("decide", "--try"), ("memory", "--capture"), ("memory", "--scopes")}
_COMMANDS = {
    "audit": _Command(
        audit, ("batches", "between", "generators", "callables"), ("json", "sarif"),
        {"--iterations": int, "--warmup": int, "--capture-warmup": int, "--device": _device,
         "--no-trial": False, "--no-sources": False}),
    "verify": _Command(
        verify, ("graphed", "state", "inputs", "between", "reset", "generators", "tolerance"), ("json",),
        {"--steps": int, "--no-narrow": False, "--no-poison": False}),
    "memory": _MEMORY,
    "memory --capture": dataclasses.replace(_MEMORY, judge=capture_memory),
    "memory --scopes": dataclasses.replace(_MEMORY, judge=predict_scopes, reports=("json",)),
    "profile": _PROFILE,
    "decide": _PROFILE,
    "decide --try": _Command(try_scopes, ("batches",), ("json",), {"--iterations": int}),
}  # fmt: skip


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"pianola: {message}\nTry '{self.prog} --help'.", file=sys.stderr)
        raise SystemExit(_USAGE)


def _parser(name: str) -> _Parser:
    command = _COMMANDS[name]
    parser = _Parser(prog=f"pianola {name}", add_help=False, allow_abbrev=False)
    parser.add_argument("target")
    for report in command.reports:
        parser.add_argument(f"--{report}")
    for option, kind in command.options.items():
        if isinstance(kind, bool):
            parser.add_argument(option, dest=option[2:].removeprefix("no-"), action="store_const", const=kind)
        else:
            parser.add_argument(option, type=kind)
    return parser


def main(arguments: Sequence[str]) -> NoReturn:
    """Ends the process."""
    raise SystemExit(run(arguments))


def run(arguments: Sequence[str]) -> int:
    """The exit code of `pianola ARGUMENTS...`."""
    name, *rest = arguments
    for variant in rest:
        if (name, variant) in _VARIANTS:
            name = f"{name} {variant}"
            rest.remove(variant)
            break
    command, parser = _COMMANDS[name], _parser(name)
    options = vars(parser.parse_args(rest))
    files = {report: options.pop(report) for report in command.reports}
    if list(files.values()).count("-") > 1:
        parser.error(f"only one of {' and '.join(f'--{one}' for one in files)} can go to the standard output")
    if options.get("device") == "cuda" and not torch.cuda.is_available():
        return _fail("there is no CUDA device to run on\n  fix:   use --device cpu, or see what 'pianola info' finds", _FAILED)
    to_output = "-" in files.values()
    try:
        check_writable(*files.values())
        # What the script prints does not come between the lines of a machine's output.
        with contextlib.redirect_stdout(sys.stderr) if to_output else contextlib.nullcontext():
            report = _tried(options) if command.judge is try_scopes else _judged(command, options)
    except UsageError as error:
        return _fail(str(error), _USAGE)
    except SystemExit as end:
        return _fail(ended_itself(end), _FAILED)
    except Exception:
        traceback.print_exc()
        return _fail("the script fails", _FAILED)
    for kind, file in files.items():
        if file == "-":
            print(getattr(report, f"to_{kind}")())
        elif file is not None:
            Path(file).write_text(getattr(report, f"to_{kind}")() + "\n", encoding="utf-8")
    if not to_output:
        print(report.to_text(), end="")
    return int(getattr(report, "exit_code", 0))  # a profile finds no faults


def _judged(command: _Command, options: dict[str, Any]) -> Any:
    if command.judge is capture_memory:
        with watch_memory(options["device"]):  # the script may use the device as soon as it is loaded
            return _judged_now(command, options)
    return _judged_now(command, options)


def _judged_now(command: _Command, options: dict[str, Any]) -> Any:
    target = options.pop("target")
    module, step = load(target)
    chosen = {name: getattr(module, name) for name in command.beside if hasattr(module, name)}
    if target.rpartition(":")[2].rpartition(".")[2].startswith("make_"):
        step, more = with_arguments(step())
        chosen.update(more)
    if callable(chosen.get("batches")):
        chosen["batches"] = chosen["batches"]()
    chosen.update({name: value for name, value in options.items() if value is not None})
    return command.judge(step, **chosen)


def _tried(options: dict[str, Any]) -> TriedScopes:
    """The script is loaded anew for each scope: what it makes is made anew."""
    target = options.pop("target")
    makes = target.rpartition(":")[2].rpartition(".")[2].startswith("make_")

    def make_step() -> Any:
        step = load(target)[1]
        return with_arguments(step())[0] if makes else step

    module, step = load(target)
    chosen = {"batches": module.batches} if hasattr(module, "batches") else {}
    if makes:
        chosen.update(with_arguments(step())[1])
    if callable(chosen.get("batches")):
        chosen["batches"] = chosen["batches"]()
    chosen.update({name: value for name, value in options.items() if value is not None})
    return try_scopes(make_step, **chosen)


def _fail(sentence: str, code: int) -> int:
    print(f"pianola: {sentence}", file=sys.stderr)
    return code
