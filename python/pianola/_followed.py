"""Whose functions are followed to see what a call reads on the host."""

import os
import sys
from types import CodeType, FrameType
from typing import Any

import torch
from torch.nn.modules import module as torch_modules

from ._audit.files import HIDDEN, PACKAGE, TORCH, kind_of_file
from ._audit.once import once_per
from ._host_places import slots_of
from ._torch_abi import CODE_OF_APPLY, code_of

# Parts of Python's library that keep books of their own, and decide nothing.
_BOOKKEEPERS = ("logging", "warnings", "threading", "importlib", "traceback", "linecache", "inspect", "queue", "concurrent",
                "asyncio", "multiprocessing", "random", "weakref", "_weakrefset", "abc", "tokenize", "re", "ast",
                "dis", "typing", "copy", "copyreg", "pickle", "sre_compile", "sre_parse", "tempfile", "unittest")  # fmt: skip

# Those of its classes that keep in C what they are.
_STATEFUL = ("_io", "_csv", "_queue", "_socket", "mmap", "sqlite3")

# Torch's functions that DistributedDataParallel calls as it calls the user's: what they keep is in no object that is met before.
_HOOKS = os.path.join(os.path.dirname(torch.__file__), "distributed", "algorithms", "ddp_comm_hooks", "")

_CLEARS_GRADIENTS = code_of(torch.nn.Module.zero_grad)  # the one method of the file of all modules that is

_PIANOLA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
_STAND_INS = os.path.join(_PIANOLA, "integrations", "_stand_ins.py")  # of classes of others: read as theirs are
_STANDARD = os.path.join(os.path.dirname(os.path.abspath(os.__file__)), "")


@once_per
def kind_of_code(code: CodeType) -> int:
    """0: not followed. 1: followed. 2: torch's, followed where it is a method of a module or another object that is met."""
    file = code.co_filename
    kind = kind_of_file(file)
    if kind & PACKAGE and kind & HIDDEN:  # a package that does chores, such as numpy
        return 0
    if kind & TORCH:
        if code is CODE_OF_APPLY:
            return 2
        if file.startswith(_HOOKS):
            return 1
        if code is _CLEARS_GRADIENTS:
            return 2
        is_method = code.co_argcount > 0 and code.co_varnames[0] == "self"
        return 2 if is_method and file != torch_modules.__file__ else 0
    if file.startswith(_PIANOLA):
        return int(file == _STAND_INS)
    if file.startswith("<frozen "):
        return 0 if file[len("<frozen ") : -1].split(".")[0] in _BOOKKEEPERS else 1
    parts = file.replace("\\", "/").split("/")
    is_standard = file.startswith(_STANDARD) and not kind & PACKAGE
    if is_standard and any(part.removesuffix(".py") in _BOOKKEEPERS for part in parts[-2:]):
        return 0
    return 1


def is_made_for_torch(frame: FrameType) -> bool:
    """Whether its code was made at run time for one of torch's modules, as the methods of its dataclasses are."""
    return frame.f_code.co_filename.startswith("<string") and frame.f_globals.get("__name__", "").partition(".")[0] == "torch"


def is_hidden(code: CodeType) -> bool:
    """Whether nobody follows it: of a part of Python's library."""
    return kind_of_code(code) == 0 and not kind_of_file(code.co_filename) & TORCH and not code.co_filename.startswith(_PIANOLA)


@once_per
def is_torchs(kind: Any) -> bool:
    return any(base.__module__.split(".")[0] == "torch" for base in kind.__mro__ if base is not object)


@once_per
def is_keeper(kind: Any) -> bool:
    """Whether objects of the class keep what a step reads: not what iterates over data, nor what torch passes around."""
    if not is_torchs(kind) or issubclass(kind, (torch.dtype, torch.device, torch.Generator, torch.Tensor, torch.Size)):
        return False
    names = [base.__module__ for base in kind.__mro__]
    passed = ("torch.utils.data", "torch._", "torch.fx", "torch.overrides", "torch.profiler", "torch.distributed.tensor", "torch.distributed.fsdp")
    return not any(name.startswith(passed) for name in names)


@once_per
def is_ours(kind: Any) -> bool:
    name = kind.__module__
    return bool(name.split(".")[0] == "pianola") and not name.startswith("pianola.integrations.")  # whose trainers are the user's


@once_per
def is_opaque(kind: Any) -> bool:
    """Whether its objects keep what they are where Python does not see it: a class of a C extension of somebody's."""
    package = kind.__module__.split(".")[0]
    if package in _STATEFUL:
        return True
    if kind.__basicsize__ == object.__basicsize__ and kind.__itemsize__ == 0:  # without room for anything
        return False
    has_own = kind.__dictoffset__ != 0 or bool(slots_of(kind))
    return not has_own and package not in sys.stdlib_module_names and package not in ("torch", "numpy", "pianola")
