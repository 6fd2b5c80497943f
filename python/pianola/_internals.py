"""What the Python package builds on inside torch, tried: the rows that `pianola info --check` adds to those of the library."""

import json
import subprocess
import sys
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
    """What torch did instead; empty: it is as Pianola needs it."""


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
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    seen: list[str] = []
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.grad = torch.ones(2)
    hooks = (
        register_optimizer_step_pre_hook(lambda of, *rest: seen.append("before") if of is optimizer else None),
        register_optimizer_step_post_hook(lambda of, *rest: seen.append("after") if of is optimizer else None),
    )
    try:
        optimizer.step()
    finally:
        for hook in hooks:
            hook.remove()
    if seen != ["before", "after"]:
        return f"hooks of all optimizers ran as {seen}"
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
    """Those of the Python package alone."""
    return [Internal(name, used_for, _run(trial)) for name, used_for, trial in _TRIALS]


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
    """`python -m pianola info --check`: the program's report, and the rows of the package."""
    ran = subprocess.run([program, *arguments], env=environment, stdout=subprocess.PIPE, text=True)
    if not ran.stdout:  # it has said why
        return ran.returncode
    internals = of_python()
    rows = [("python", one.name, one.used_for, f"moved: {one.trouble}" if one.trouble else "as needed") for one in internals]
    if "--json" in arguments:
        report = json.loads(ran.stdout)
        report["internals"] += [dict(zip(("device", "internal", "used_for", "state"), row)) for row in rows]
        print(json.dumps(report, indent=2))
    else:
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        print(ran.stdout, end="")
        for *first, state in rows:
            print("  " + "  ".join(text.ljust(width) for text, width in zip(first, widths)) + f"  {state}")
    sys.stdout.flush()
    return ran.returncode or int(any(one.trouble for one in internals))
