"""What the Python package builds on inside torch, tried: the rows that `pianola info --check` adds to those of the library."""

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence

import torch

from ._device import as_device
from ._load import _C
from ._torch_abi import CODE_OF_APPLY, code_of, function_of_apply


class Internal(NamedTuple):
    """Something inside torch that Pianola builds on, after it was tried."""

    name: str
    used_for: str
    trouble: str
    """What torch did instead, or what was raised; empty: it is as Pianola needs it."""
    tried: bool = True
    """Whether it could be: not where somebody's allocator stands in front of torch's."""


def _owners_of_a_storage() -> str:
    tensor = torch.ones(2)
    view = tensor.view(2)
    counted = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    del view
    alone = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return "" if counted == alone + 1 else f"a view counted {counted - alone} times"


def _parts_of_to() -> str:
    device, dtype = torch._C._nn._parse_to("cpu", dtype=torch.float64)[:2]  # type: ignore[call-overload]
    return "" if (device, dtype) == (torch.device("cpu"), torch.float64) else f"'cpu' and float64 were read as {device} and {dtype}"


def _custom_functions() -> str:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    known = function_of_apply(Twice.apply) is Twice or (CODE_OF_APPLY is not None and code_of(Twice.apply) is CODE_OF_APPLY)
    return "" if known else f"Function.apply is a {type(Twice.apply).__name__} that is not known"


def _steps_of_optimizers() -> str:
    """No step is made: the user's own hooks of all optimizers would see it."""
    from torch.optim import optimizer

    def hook(*of_step: Any) -> None: ...

    tables = (("pre", optimizer.register_optimizer_step_pre_hook), ("post", optimizer.register_optimizer_step_post_hook))
    for moment, register in tables:
        handle = register(hook)
        known = hook in getattr(optimizer, f"_global_optimizer_{moment}_hooks").values()
        handle.remove()
        if not known:
            return f"a {moment}-hook of all optimizers is not where it was"
    return "" if hasattr(torch.optim.SGD.step, "__wrapped__") else "step() is not wrapped as it was"


def _hooks_of_modules() -> str:
    module = torch.nn.Linear(1, 1)
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    missing = [name for name in names if not isinstance(vars(module).get(name), dict)]
    missing += [f"_global{name}" for name in names if not isinstance(getattr(torch.nn.modules.module, f"_global{name}", None), dict)]
    return f"{', '.join(missing)} are gone" if missing else ""


def _backward_passes() -> str:
    number = torch._C._current_graph_task_id()
    return "" if number == -1 else f"outside of a backward pass its number is {number}"


_TRIALS: tuple[tuple[str, str, Callable[[], str]], ...] = (
    ("owners of a storage", "telling a result that nobody holds any more", _owners_of_a_storage),
    ("parts of Tensor.to()", "inputs that the step brings to the device", _parts_of_to),
    ("custom autograd functions", "what their forward() and backward() read on the host", _custom_functions),
    ("steps of optimizers", "the numbers that they count on the host", _steps_of_optimizers),
    ("hooks of modules", "what they read and store", _hooks_of_modules),
    ("numbers of backward passes", "recomputation by checkpoints", _backward_passes),
)


def _run(trial: Callable[[], str]) -> str:
    try:
        return trial()
    except Exception as error:
        return f"it failed: {type(error).__name__}: {str(error).partition(chr(10))[0]}"


def of_python() -> list[Internal]:
    """Those of the Python package alone, tried on a thread of their own: without modes, transforms and hooks of this one."""
    found: list[Internal] = []
    thread = threading.Thread(target=lambda: found.extend(Internal(name, use, _run(trial)) for name, use, trial in _TRIALS))
    thread.start()
    thread.join()
    return found


def check_internals(device: Optional[Any] = None) -> list[Internal]:
    """Tries what Pianola builds on inside torch and that no compiler checks, on a device, and in Python.

    Captures try for themselves those that wrong numbers would follow from, once for each build of torch and Pianola and each driver;
    where one has moved, they raise UnsupportedError.

    Args:
        device: the CPU or a CUDA device; None: the current CUDA device, if there is one, else the CPU.

    Returns:
        For each its name, what it is used for, and its trouble, which is empty where all is as Pianola needs it.
    """
    return [Internal(*row) for row in _C.check_internals(as_device(device))] + of_python()


def main(program: Path, environment: Mapping[str, str], arguments: Sequence[str]) -> int:
    """`python -m pianola info --check`: the program's report, and what the package adds to it."""
    ran = subprocess.run([program, *arguments], env=environment, stdout=subprocess.PIPE, text=True)
    if ran.returncode not in (0, 1):
        print(ran.stdout, end="")
        return ran.returncode
    internals = of_python()
    rows = [(one.name, one.used_for, f"moved: {one.trouble}" if one.trouble else "as needed") for one in internals]
    if any(one.partition("=")[0] == "--json" for one in arguments):
        report = json.loads(ran.stdout)
        report["internals"] += [dict(zip(("device", "internal", "used_for", "state"), ("python", *row))) for row in rows]
        print(json.dumps(report, indent=2))
    else:
        print(ran.stdout + table(("in Python", "used for", "state"), rows))
    sys.stdout.flush()
    return ran.returncode or int(any(one.trouble for one in internals))


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """As the program draws them."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = [head, tuple("-" * width for width in widths), *rows]
    return "\n".join("  " + "  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip() for line in lines)
