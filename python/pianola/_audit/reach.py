"""What a step can reach besides its arguments, by name: closures, globals that its code mentions, its object, modules,
optimizers, containers. One walk is one look: values are noted as marks, and nothing is kept alive."""

import collections
import contextlib
import functools
import gc
import random
import sys
import types
import weakref
from typing import Any, Iterator, NamedTuple, Optional, Sequence

import torch
from torch.optim.lr_scheduler import LRScheduler

from . import files
from .marks import Mark, entries_of, is_container, is_number, mark_of
from .module_tree import ModuleTrees, more_of
from .once import once_per

_LIMIT = 50_000  # places
_DEPTH = 16
_FUNCTIONS = 64
_NAMESPACES = ("SimpleNamespace", "Namespace")


class Step(NamedTuple):
    """How to get from an owner to a value: an attribute, an entry, a variable."""

    kind: str
    key: Any

    def follow(self, owner: Any) -> Any:
        """None where it is gone."""
        try:
            if self.kind == "item":
                return owner[self.key]
            if self.kind == "group":
                return owner.param_groups[self.key[0]][self.key[1]]
            if self.kind == "cell":
                return self.key.cell_contents
            if self.kind == "global":
                return self.key[0].get(self.key[1])
            if self.kind == "weak":
                return self.key()
            return getattr(owner, self.key) if self.kind == "attribute" else self.key
        except Exception:  # a missing entry, an empty cell, a property that raises
            return None


class Root(NamedTuple):
    name: str
    step: Step


class _Item(NamedTuple):
    path: str
    value: Any
    is_torchs: bool
    depth: int


class Walk:
    """One look.

    Args:
        roots: where it begins; see roots_of().
        executed: (code, globals) of functions that ran: the globals that they mention are roots too.
        trees: what other walks know of modules.
        trail: remember how each place is reached, for steps_to() later.
    """

    def __init__(
        self,
        roots: list[Root],
        executed: Sequence[tuple[types.CodeType, dict]] = (),
        trees: Optional[ModuleTrees] = None,
        trail: bool = False,
    ) -> None:
        self.marks: dict[str, Mark] = {}
        self.modules: dict[torch.nn.Module, str] = {}
        self.optimizers: dict[torch.optim.Optimizer, str] = {}
        self.torchs_own: set[str] = set()  # places inside objects of torch's
        self._trail: Optional[dict[str, tuple[Optional[str], Step]]] = {} if trail else None
        self._trees = trees if trees is not None else ModuleTrees()
        self._seen: set[int] = set()
        self.codes: set[types.CodeType] = set()  # of the functions that were found
        self._variables: dict[str, int] = {}
        self._types: set[type] = set()
        self._queue: collections.deque[_Item] = collections.deque()
        with _uncollected():
            for root in roots:
                self._add_root(root)
            for code, variables in executed:
                self._add_globals(code, variables, "")
            while self._queue and len(self.marks) < _LIMIT:
                with contextlib.suppress(Exception):  # of a user's object: what cannot be looked at is not seen
                    self._open(self._queue.popleft())
            self._add_random_generators()
        self.is_complete = not self._queue
        self._queue.clear()

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """By name; those of optimizers' states last."""
        names: dict[int, str] = {}
        for path, mark in self.marks.items():
            if mark.kind == "tensor" and (tensor := mark.value.get()) is not None:
                names.setdefault(id(tensor), path)
                yield path, tensor
        for optimizer, path in self.optimizers.items():
            for parameter, state in optimizer.state.items():
                owner = f"{path}.state[{names.get(id(parameter), '...')}]"
                for name, value in state.items() if isinstance(state, dict) else ():
                    if isinstance(value, torch.Tensor):
                        yield f"{owner}[{name!r}]", value

    def steps_to(self, path: str) -> Optional[list[Step]]:
        """How the place is reached, from a variable on; None where it is not known."""
        assert self._trail is not None
        steps: list[Step] = []
        at: Optional[str] = path
        while at is not None:
            if at not in self._trail:
                return None
            at, step = self._trail[at]
            steps.append(step)
        return steps[::-1]

    # --- Where it begins ---

    def _add_root(self, root: Root) -> None:
        self._add(root.name, None, *root.step, root.step.follow(None), False, 0)

    def _add_variable(self, name: str, step: Step, identity: int, owner: str, value: Any) -> None:
        """Two variables of one name are told apart by the function or module that they belong to."""
        known = self._variables.setdefault(name, identity)
        if known != identity:
            name = f"{owner}.{name}"
            if self._variables.setdefault(name, identity) != identity:
                return
        if name not in self.marks:
            self._add(name, None, *step, value, False, 0)

    def _add_globals(self, code: types.CodeType, variables: dict, owner: str) -> None:
        for name in names_in(code):
            if name in variables:
                value = variables[name]
                if isinstance(value, types.ModuleType):
                    self._add_members(name, value, code)
                else:
                    step = Step("global", (variables, name))
                    self._add_variable(name, step, id(variables), owner or str(variables.get("__name__", "")), value)

    def _add_members(self, path: str, module: types.ModuleType, code: types.CodeType) -> None:
        """Of a module of the user's own: what the code mentions."""
        file = getattr(module, "__file__", None)
        if file is None or files.kind_of_file(file) != 0:
            return
        for name in names_in(code):
            if name in vars(module) and not isinstance(vars(module)[name], types.ModuleType):
                step = Step("global", (vars(module), name))
                self._add_variable(f"{path}.{name}", step, id(vars(module)), path, vars(module)[name])

    def _add_random_generators(self) -> None:
        generators: dict[str, Any] = {"random": random._inst}
        numpy_random = getattr(sys.modules.get("numpy.random"), "mtrand", None)
        if numpy_random is not None:
            generators["numpy.random"] = numpy_random._rand
        for path, generator in generators.items():
            self._add(path, None, "value", generator, generator, False, 0)

    # --- Noting and opening ---

    def _add(self, path: str, parent: Optional[str], kind: str, key: Any, value: Any, is_torchs: bool, depth: int) -> None:
        if self._trail is not None:
            self._trail[path] = (parent, Step(kind, key))
        mark = mark_of(value)
        if mark is not None:
            self.marks[path] = mark
            if is_torchs:
                self.torchs_own.add(path)
            if mark.kind != "container":
                return
        if id(value) not in self._seen and depth < _DEPTH:
            self._seen.add(id(value))
            self._queue.append(_Item(path, value, is_torchs, depth))

    def _open(self, item: _Item) -> None:
        value = item.value
        if is_container(value):
            self._open_container(item)
        elif isinstance(value, torch.jit.ScriptModule):
            self._open_script(item)
        elif isinstance(value, torch.nn.Module):
            self._open_module(item)
        elif isinstance(value, torch.optim.Optimizer):
            self._open_optimizer(item)
        elif isinstance(value, types.FunctionType):
            own = {name: one for name, one in vars(value).items() if name != "__wrapped__"}
            self._open_attributes(item._replace(path=item.path or value.__name__), own, False)
            self._open_function(value)
        elif isinstance(value, types.MethodType):
            self._open_attributes(item, {"__self__": value.__self__, "__func__": value.__func__}, False)
        elif isinstance(value, functools.partial):
            self._open_attributes(item, {name: getattr(value, name) for name in ("func", "args", "keywords")}, False)
        elif isinstance(value, type):
            if _is_users(value):
                self._open_type(value, item.path)
        else:
            self._open_object(item)

    def _open_container(self, item: _Item) -> None:
        for key, value in entries_of(item.value):
            path = f"{item.path}[{_short(key)}]"
            self._add(path, item.path, "item", key, value, item.is_torchs, item.depth + 1)

    def _open_attributes(self, item: _Item, attributes: dict, is_torchs: bool) -> None:
        for name, value in attributes.items():
            self._add(_joined(item.path, name), item.path, "attribute", name, value, is_torchs, item.depth + 1)

    def _open_module(self, item: _Item) -> None:
        tree = self._trees.of(item.value, item.path)
        self.modules = {**tree.paths, **self.modules}
        self._seen |= tree.ids
        self.marks.update(tree.marks)
        if self._trail is not None:
            for path, (owner, name) in tree.owners.items():
                self._trail.setdefault(path, (owner, Step("attribute", name)))
        for module, path in tree.with_more:
            kind: Any = type(module)
            self._open_attributes(item._replace(path=path), more_of(module), _is_torchs(kind))
        for kind in tree.kinds:
            self._open_methods(kind)

    def _open_script(self, item: _Item) -> None:
        for path, module in item.value.named_modules():
            self.modules[module] = _joined(item.path, path) if path else item.path
        for named in (item.value.named_parameters(), item.value.named_buffers()):
            self._open_attributes(item, dict(named), False)

    def _open_optimizer(self, item: _Item) -> None:
        self.optimizers[item.value] = item.path
        for i, group in enumerate(item.value.param_groups):
            for name, value in group.items():
                if name != "params":
                    path = f"{item.path}.param_groups[{i}][{name!r}]"
                    self._add(path, item.path, "group", (i, name), value, True, item.depth + 1)
        kind: Any = type(item.value)
        if not _is_torchs(kind):
            known = ("param_groups", "state", "defaults")
            others = {name: value for name, value in vars(item.value).items() if name not in known}
            self._open_attributes(item, others, True)

    def _open_object(self, item: _Item) -> None:
        kind: Any = type(item.value)
        if not _can_open(kind):
            return
        is_torchs = _is_torchs(kind)
        attributes = dict(getattr(item.value, "__dict__", {}))
        for slot in _slots(kind):
            if hasattr(item.value, slot):
                attributes[slot] = getattr(item.value, slot)
        if is_torchs:  # tensors for their names, and what they wrap; the rest is torch's business
            attributes = {name: value for name, value in attributes.items() if _is_worth_it(value)}
        self._open_attributes(item, attributes, is_torchs)
        self._open_methods(kind)

    def _open_methods(self, kind: type) -> None:
        for base in kind.__mro__:
            if base not in self._types and _is_users(base):
                self._open_type(base, base.__name__)

    def _open_type(self, kind: type, path: str) -> None:
        """Methods for what they mention, and variables of the class."""
        self._types.add(kind)
        for name, value in list(vars(kind).items()):
            value = getattr(value, "__func__", value)
            value = value.fget if isinstance(value, property) else value
            if isinstance(value, types.FunctionType):
                self._open_function(value)
            elif not name.startswith("__") and (is_number(value) or is_container(value) or isinstance(value, torch.Tensor)):
                self._add(f"{path}.{name}", None, "global", (vars(kind), name), value, False, 1)

    def _open_function(self, function: types.FunctionType) -> None:
        while True:
            code = function.__code__
            if code not in self.codes:
                self.codes.add(code)
                if files.is_users(code) or function.__closure__:
                    self._open_code(function, code)
            wrapped = getattr(function, "__wrapped__", None)
            if not isinstance(wrapped, types.FunctionType):
                return
            function = wrapped

    def _open_code(self, function: types.FunctionType, code: types.CodeType) -> None:
        for name, cell in zip(code.co_freevars, function.__closure__ or ()):
            step = Step("cell", cell)
            self._add_variable(name, step, id(cell), code.co_name, step.follow(None))
        if files.kind_of_file(code.co_filename) != 0:  # of a package, what runs is known and enough
            return
        for i, value in enumerate(function.__defaults__ or ()):
            if is_container(value) or isinstance(value, torch.Tensor):
                names = code.co_varnames[: code.co_argcount]
                name = names[len(names) - len(function.__defaults__ or ()) + i]
                self._add_variable(name, Step("value", value), id(value), code.co_name, value)
        self._add_globals(code, function.__globals__, "")


def functions_of(codes: set[types.CodeType]) -> list[Root]:
    """Functions with closures that run this code: hooks and callbacks that nothing of the step leads to. Looks through all
    objects there are, which takes a moment."""
    if not codes:
        return []
    functions = [one for one in gc.get_referrers(*codes) if isinstance(one, types.FunctionType) and one.__closure__]
    return [Root("", Step("weak", weakref.ref(one))) for one in functions[:_FUNCTIONS]]


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """What is made here is many and lives shortly: the collector of cycles would run over and over again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def roots_of(target: Any) -> list[Root]:
    """Where to begin with a step: a function, a bound method, a partial, a module, or an object that can be called."""
    if isinstance(target, types.MethodType):
        return [Root("self", Step("value", target.__self__)), Root("", Step("value", target.__func__))]
    if isinstance(target, functools.partial):
        bound = [Root(f"args[{i}]", Step("value", value)) for i, value in enumerate(target.args)]
        return bound + [Root(name, Step("value", value)) for name, value in target.keywords.items()] + roots_of(target.func)
    if isinstance(target, torch.nn.Module):
        return [Root("model", Step("value", target))]
    if isinstance(target, types.FunctionType):
        return [Root("", Step("value", target))]
    called = getattr(type(target), "__call__", None)
    function = [Root("", Step("value", called))] if isinstance(called, types.FunctionType) else []
    return [Root("self", Step("value", target)), *function]


@once_per
def names_in(code: types.CodeType) -> tuple[str, ...]:
    """Globals and attributes that the code mentions, that of functions inside it included."""
    names = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names += names_in(constant)
    return tuple(dict.fromkeys(names))


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _short(key: Any) -> str:
    text = repr(key) if not isinstance(key, torch.Tensor) else "a tensor"
    return text if len(text) <= 40 else text[:37] + "..."


@once_per
def _is_torchs(kind: Any) -> bool:
    return kind.__module__.split(".")[0] == "torch"


@once_per
def _is_users(kind: Any) -> bool:
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    if _is_torchs(kind) or kind.__module__ == "builtins":
        return False
    return file is None or not files.kind_of_file(file) & files.HIDDEN


@once_per
def _can_open(kind: type) -> bool:
    if kind.__name__ in _NAMESPACES or _is_torchs(kind):
        return not issubclass(kind, (torch.dtype, torch.device, torch.Generator, torch.utils.data.DataLoader))
    return _is_users(kind) and (hasattr(kind, "__dict__") or bool(_slots(kind)))


def _slots(kind: type) -> list[str]:
    names: list[str] = []
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else [name for name in slots if isinstance(name, str)]
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _is_worth_it(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, torch.nn.Module, torch.optim.Optimizer, LRScheduler))
