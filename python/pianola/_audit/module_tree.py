"""Modules with all that is inside: by far the most of what a step reaches, and what changes least."""

import types
import weakref
from typing import Any, NamedTuple, Optional

import torch

from .._errors import UsageError
from .._load import _C
from .marks import Mark, TensorMark
from .once import once_per

_OF_ALL = frozenset(vars(torch.nn.Module())) | {"_is_full_backward_hook", "_compiled_call_impl", "_forward_module"}
_NOTHING = Mark("number", None)


class ModuleTree:
    """A look at a module and its submodules.

    Args:
        module: the root.
        path: what it is called.
    """

    def __init__(self, module: torch.nn.Module, path: str) -> None:
        self.root = path
        self.paths: dict[torch.nn.Module, str] = {}
        self.marks: dict[str, Mark] = {}  # of parameters and buffers
        self.owners: dict[str, tuple[str, str]] = {}  # path: its module's path, and its name there
        for inner, submodule in module.named_modules():
            self._add(submodule, _joined(path, inner))
        self.ids = frozenset(map(id, self.paths))
        self.kinds = {type(one) for one in self.paths}
        self.with_more = [(one, where) for one, where in self.paths.items() if more_of(one)]
        self._sizes = self._count()

    def is_current(self) -> bool:
        """Whether no module got or lost attributes; of parameters, buffers and submodules somebody else knows."""
        return self._sizes == self._count()

    def _count(self) -> list[int]:
        return [len(vars(module)) for module in self.paths]

    def _add(self, module: torch.nn.Module, path: str) -> None:
        self.paths[module] = path
        own = vars(module)
        for members in (own["_parameters"], own["_buffers"]):
            for name, tensor in members.items():
                where = _joined(path, name)
                self.marks[where] = _NOTHING if tensor is None else Mark("tensor", TensorMark(tensor))
                self.owners[where] = (path, name)
        for name in own["_modules"]:
            self.owners[_joined(path, name)] = (path, name)


class _Known(NamedTuple):
    module: "weakref.ref[torch.nn.Module]"
    watch: "_C.ModuleWatch"
    state: int
    tree: ModuleTree


class ModuleTrees:
    """Trees that are made again only where a module has changed."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}

    def of(self, module: torch.nn.Module, path: str) -> ModuleTree:
        known = self._known.get(id(module))
        if known is not None and known.module() is module and known.tree.root == path:
            state = known.watch.state()[0]
            if state == known.state and known.tree.is_current():
                return known.tree
        return self._look(module, path)

    def _look(self, module: torch.nn.Module, path: str) -> ModuleTree:
        tree = ModuleTree(module, path)
        watch = _watch_of(module)
        if watch is not None:
            self._known[id(module)] = _Known(weakref.ref(module), watch, watch.state()[0], tree)
        return tree


def _watch_of(module: torch.nn.Module) -> "Optional[_C.ModuleWatch]":
    try:
        return _C.ModuleWatch(module)
    except UsageError:  # a buffer requires grad, which it does not take
        return None


def more_of(module: torch.nn.Module) -> dict[str, Any]:
    """Attributes that torch does not give to modules of this class."""
    kind: Any = type(module)
    known = _torchs_attributes(kind)
    own = vars(module)
    return {name: own[name] for name in own.keys() - known} if own.keys() - known else {}


@once_per
def _torchs_attributes(kind: Any) -> frozenset[str]:
    names = set(_OF_ALL)
    for base in kind.__mro__ if kind.__module__.split(".")[0] == "torch" else ():
        names.update(getattr(base, "__annotations__", ()), getattr(base, "__constants__", ()))
        for value in vars(base).values():
            if isinstance(value, types.FunctionType):
                names.update(value.__code__.co_names)
    return frozenset(names)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name
