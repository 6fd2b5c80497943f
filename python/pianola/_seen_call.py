"""One call of a module or a function in an eager call of a step, and whether it could be a part that stays eager (`_found_parts`).

A replay runs such a part alone, without the Python around it. So a call is only fit if it
- works with what it is given, what it has (a module, its own; a function, the modules among its arguments; both, modules that their code
  finds by a global name), and what it makes, and nothing else;
- writes nothing that was there before, draws no random numbers, and is given nothing that it could change but tensors and modules;
- leaves nothing behind but its results, which have memory of their own;
- finds what it has, and the globals that its code reads, as they are when the step is over.
"""

import contextvars
import gc
import itertools
import sys
import types
import weakref
from collections import deque
from types import CodeType, FrameType
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Optional

import torch
from torch.utils import _pytree as pytree

from ._found_calls import FoundFunction, FoundModule, FoundPart
from ._host_places import cell_content
from ._settings_here import settings_here

_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
PLAIN_VALUES = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
_NO_STATE = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type, torch.Tensor)
_CONTAINERS = (list, tuple, set, frozenset, deque)
_MOST_ELEMENTS = 64
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


# --- What is where ---


def memory_of(tensor: torch.Tensor) -> Any:
    """What tells the tensor's memory from others'. @throws what torch throws of tensors that have none."""
    if type(tensor) not in _PLAIN_TENSORS or tensor.layout is not torch.strided:
        raise ValueError("not plain")
    return tensor.untyped_storage()._cdata


def _outline(value: Any, depth: int = 2) -> list[Any]:
    """A value, and what it holds; for comparing by identity."""
    if depth == 0 or isinstance(value, (*PLAIN_VALUES, *_NO_STATE, torch.nn.Module)):
        return [value]
    if isinstance(value, _CONTAINERS):
        count, held = len(value), iter(value)
    else:
        inside = value if isinstance(value, dict) else getattr(value, "__dict__", {})
        count, held = len(inside), itertools.chain(*inside.items()) if value is inside else iter(inside.values())
    found = [value, count]
    for one in itertools.islice(held, _MOST_ELEMENTS):
        found += _outline(one, depth - 1)
    return found


def are_alike(before: list[Any], now: list[Any]) -> bool:
    def alike(one: Any, other: Any) -> bool:
        return one is other or (type(one) is type(other) and isinstance(one, PLAIN_VALUES) and one == other)

    return len(before) == len(now) and all(map(alike, before, now))


def _state_of_module(module: torch.nn.Module) -> list[Any]:
    """All that the module, and its parts, have."""
    found: list[Any] = []
    for part in module.modules():
        for name, value in vars(part).items():
            found += [name, *_outline(value)] if name not in ("_parameters", "_buffers", "_modules") else []
        tensors = [one for one in (*part._parameters.values(), *part._buffers.values()) if one is not None]
        found += [*part._modules.values(), *tensors, *(tensor.data_ptr() for tensor in tensors)]
    return found


def _state_of_function(function: Any) -> list[Any]:
    """What it finds beside its arguments and globals, and so do those that it is a wrapper of."""
    found: list[Any] = []
    while isinstance(function, types.FunctionType):
        found += [function, function.__code__, *_outline(function.__defaults__), *_outline(function.__kwdefaults__)]
        found += [one for name, value in vars(function).items() if name != "__wrapped__" for one in (name, *_outline(value))]
        for cell in function.__closure__ or ():
            found += _outline(cell_content(cell, None))
        function = vars(function).get("__wrapped__")
    return found


def _tensors_of_module(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()
    for part in module.modules():
        yield from (value for value in _outline(vars(part)) if isinstance(value, torch.Tensor))


# By the type of what a call returns: how often a tensor of it is referred to, at most, that nobody keeps.
_references_of_unkept: "weakref.WeakKeyDictionary[type, int]" = weakref.WeakKeyDictionary()


def _are_kept(results: list[torch.Tensor], result: Any) -> bool:
    """Whether anybody but the caller has one of the results of a call that returns. To ask who has it takes a walk over all objects, which
    is left out where no more refer to it than to one that nobody kept: calls return the same way, all of them."""
    count = max(map(sys.getrefcount, results))
    if count <= _references_of_unkept.get(type(result), 0):
        return False
    ours = {id(results), id(result)}
    waiting = [result]
    while waiting:  # the containers that it returns
        one = waiting.pop()
        held = list(one.values()) if isinstance(one, dict) else list(one) if isinstance(one, _CONTAINERS) else []
        ours.update(map(id, held))
        waiting += held
    holders = (holder for holder in gc.get_referrers(*results) if not isinstance(holder, (tuple, types.FrameType)))  # of functions that run
    if any(id(holder) not in ours for holder in holders):
        return True
    _references_of_unkept[type(result)] = min(count, _references_of_unkept.get(type(result), count))
    return False


class Closures:
    """Variables that functions share which were made where they are, by the code of the functions. Of one look."""

    def __init__(self) -> None:
        self._known: dict[CodeType, list[tuple]] = {}

    def of(self, code: CodeType) -> list[tuple]:
        """The cells of all functions with this code that have a plain value in one."""
        if code not in self._known:
            functions = (one for one in gc.get_referrers(code) if isinstance(one, types.FunctionType))
            cells = [one.__closure__ or () for one in functions]
            self._known[code] = [one for one in cells if any(type(cell_content(cell, None)) in PLAIN_VALUES for cell in one)]
        return self._known[code]


def _contents(cells: tuple) -> list[Any]:
    return [part for cell in cells for part in _outline(cell_content(cell, None))]


def _next_node() -> int:
    """The number of the next one of autograd's that this thread makes."""
    return torch._C._autograd._get_sequence_nr()


class _Had(NamedTuple):
    """What a call has: a module or a function, how to look at it, and how it was."""

    key: int
    look: Callable[[], Optional[list[Any]]]  # None: it is gone
    before: list[Any]

    @classmethod
    def module(cls, module: torch.nn.Module) -> "_Had":
        reference = weakref.ref(module)

        def look() -> Optional[list[Any]]:
            module = reference()
            return None if module is None else _state_of_module(module)

        return cls(id(module), look, _state_of_module(module))

    @classmethod
    def function(cls, function: FoundFunction) -> "_Had":
        def look() -> list[Any]:
            return _state_of_function(function.function)

        return cls(id(function), look, look())

    def is_as_before(self) -> bool:
        now = self.look()
        return now is not None and are_alike(self.before, now)


# --- One call ---


class SeenCall:
    """A call of a module or function in a call of the step that is looked at.

    `make_part()` gives a part for all calls of the same one, which have the same `key`; None where that is gone.
    """

    def __init__(
        self, key: int, name: str, make_part: Callable[[], Optional[FoundPart]], around: "Optional[SeenCall]", args: tuple, kwargs: dict
    ) -> None:
        self.key, self.name, self.make_part, self.around = key, name, make_part, around
        self.parts: set[int] = set()  # modules in it
        self.is_over = self.reads = False
        self.why_not = ""  # why it cannot be a part
        self.results: set[Any] = set()  # memory
        self.own: set[Any] = set()
        self.device = torch.device("cpu")
        self.nodes = range(_next_node(), 0)  # of autograd's, by their sequence numbers
        self.states: list[tuple[int, list[Any]]] = []  # by what it has, when the step is over
        self._had: dict[int, _Had] = {}
        leaves = pytree.tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        self._arguments = [*args, *kwargs.values(), *map(vars, tensors)]
        self._outline = _outline(self._arguments, 4)
        self._variables: dict[contextvars.ContextVar, Any] = {}  # of the context, that its code asks for
        self._codes: set[CodeType] = set()
        self._inner: set[CodeType] = set()  # of functions that it makes
        self._cells: list[tuple[tuple, list[Any]]] = []  # of closures that it calls and has not made, and what was in them
        self._hooks: list[Any] = []
        self._settings = settings_here()
        self._read: dict[tuple[int, str], tuple[dict, list[Any]]] = {}  # globals that its code names, as they were before
        self.given = set(map(memory_of, tensors))
        self._shapes = {tensor.shape for tensor in tensors}
        modules = [one for one in self._arguments if isinstance(one, torch.nn.Module)]
        for module in modules:
            self._have(module)
        if not all(isinstance(leaf, (torch.Tensor, *PLAIN_VALUES)) or any(leaf is one for one in modules) for leaf in leaves):
            self.refuse("is given an object")
        if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
            self.refuse("is called under hooks on saved tensors")
        self._compute_on(tensors)

    @classmethod
    def of_module(cls, module: torch.nn.Module, around: "Optional[SeenCall]", args: tuple, kwargs: dict) -> "SeenCall":
        reference = weakref.ref(module)

        def make_part() -> Optional[FoundPart]:
            alive = reference()
            return None if alive is None else FoundModule.of(alive)

        call = cls(id(module), type(module).__name__, make_part, around, args, kwargs)
        call._have(module)
        call.parts = set(map(id, module.modules()))
        if any(getattr(module, hooks) for hooks in _HOOKS):
            call.refuse("has hooks")
        if module._compiled_call_impl is not None or "forward" in vars(module) or isinstance(module, torch.jit.ScriptModule):
            call.refuse("has a forward that was replaced")
        return call

    @classmethod
    def of_function(cls, function: FoundFunction, around: "Optional[SeenCall]", args: tuple, kwargs: dict) -> "SeenCall":
        call = cls(id(function), function.name, lambda: function, around, args, kwargs)
        had = call._had[id(function)] = _Had.function(function)
        call.own.update(memory_of(one) for one in had.before if isinstance(one, torch.Tensor))
        if vars(function.function).keys() - {"__wrapped__"}:  # what stands in for it has others
            call.refuse("has attributes")
        return call

    def _have(self, module: torch.nn.Module) -> None:
        if id(module) not in self._had:
            self._had[id(module)] = _Had.module(module)
            self.own.update(map(memory_of, _tensors_of_module(module)))
            self._compute_on(module.parameters())

    def _compute_on(self, tensors: Iterable[torch.Tensor]) -> None:
        if self.device.type == "cpu":
            self.device = next((one.device for one in tensors if one.device.type != "cpu"), self.device)

    def refuse(self, why: str) -> None:
        self.why_not = self.why_not or why

    def note_code(self, frame: FrameType, closures: Closures) -> None:
        """Of a function that it calls, and that begins."""
        code = frame.f_code
        if code in self._codes:
            return
        self._codes.add(code)
        self._inner.update(one for one in code.co_consts if isinstance(one, CodeType))
        if code.co_freevars and code not in self._inner:
            self._cells += [(cells, _contents(cells)) for cells in closures.of(code)]
        variables = frame.f_globals
        for name in frame.f_code.co_names:
            if (id(variables), name) in self._read or name not in variables or isinstance(variables[name], _NO_STATE):
                continue
            value = variables[name]
            self._read[id(variables), name] = (variables, _outline(value))
            if isinstance(value, torch.nn.Module):
                self._have(value)

    def note_variable(self, variable: contextvars.ContextVar) -> None:
        self._variables.setdefault(variable, variable.get(None))

    def finish(self, result: Any) -> None:
        self.is_over = True
        self.nodes = range(self.nodes.start, _next_node())
        if not are_alike(self._outline, _outline(self._arguments, 4)):
            self.refuse("changes what it is given")
        self._arguments, self._outline = [], []
        if not all(one.is_as_before() for one in self._had.values()):
            self.refuse("sets an attribute")
        if name := self._changed_global():
            self.refuse(f"changes {name}")
        results = [leaf for leaf in pytree.tree_leaves(result) if leaf is not None]
        if not results or not all(type(leaf) in _PLAIN_TENSORS for leaf in results):
            return self.refuse("returns something else than tensors")
        if any(map(vars, results)):
            self.refuse("sets an attribute of a tensor")
        if not all(tensor.dim() == 0 or tensor.shape in self._shapes for tensor in results):
            self.refuse("returns a tensor of another shape than it is given")
        self.results = set(map(memory_of, results))
        if len(self.results) != len(results):
            self.refuse("returns tensors that share memory")
        if self.results & (self.given | self.own):
            self.refuse("returns what it is given, or has")
        if self.reads and _are_kept(results, result):
            self.refuse("keeps its result elsewhere")
        if not self.why_not:
            self._hooks = [one.register_hook(self._see_gradient) for one in results if one.grad_fn is not None]
        return None

    def _changed_global(self) -> str:
        for (_, name), (variables, before) in self._read.items():
            if name not in variables or not are_alike(before, _outline(variables[name])):
                return name
        return ""

    def _see_gradient(self, gradient: torch.Tensor) -> None:
        if torch.is_grad_enabled():
            self.refuse("is differentiated twice (create_graph=True)")

    def compare_with_end(self) -> None:
        """The step is over."""
        if not all(one.is_as_before() for one in self._had.values()):
            self.refuse("is otherwise when the step is over")
        for key, _, before in self._had.values():
            self.states.append((key, [one if isinstance(one, PLAIN_VALUES) else id(one) for one in before]))
        if not all(variable.get(None) is value for variable, value in self._variables.items()):
            self.refuse("is called in a context of its own")
        if name := self._changed_global():
            self.refuse(f"reads {name}, which the step changes")
        if self._settings != settings_here():
            self.refuse("is called in a context of its own")
        if not all(are_alike(before, _contents(cells)) for cells, before in self._cells):
            self.refuse("calls a closure whose variables the step changes")
        for hook in self._hooks:
            hook.remove()
        self._had, self._read, self._variables, self._cells, self._hooks = {}, {}, {}, [], []
