"""Looks at an eager call of a step: which of its values the host reads, in which calls of modules, and which of these modules could be
a part that stays eager while all around it is a graph (`_found_parts`).

A replay runs such a part alone, without the Python around it. So a module may only be one if in a call it
- works with what it is given, what it has, and what it makes, and nothing else;
- writes nothing that was there before, draws no random numbers, and is given nothing that it could change but tensors;
- leaves nothing behind but its results, which have memory of their own;
- finds itself, and the globals that its code reads, as they are when the step is over.
Whatever Scout does not understand is none.
"""

import contextvars
import gc
import sys
import types
import weakref
from collections import deque
from types import CodeType, FrameType
from typing import Any, Callable, NamedTuple, Optional

import torch
from torch.utils import _pytree as pytree

from ._load import _C
from ._recording import users_line

_CALL: CodeType = torch.nn.Module._call_impl.__code__
_TORCH = torch.__path__[0]
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_PLAIN_VALUES = (bool, int, float, complex, str, bytes, type(None))
_NO_STATE = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type, torch.nn.Module, torch.Tensor)
_CONTAINERS = (list, tuple, set, frozenset, deque)
_MOST_ELEMENTS = 64
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Read(NamedTuple):
    operation: str
    value: Any  # what the host learns
    where: str
    module: "Optional[ModuleCall]"  # the innermost one


# --- What is where ---


def _memory_of(tensor: torch.Tensor) -> Any:
    """What tells the tensor's memory from others'. @throws what torch throws of tensors that have none."""
    if type(tensor) not in _PLAIN_TENSORS or tensor.layout is not torch.strided:
        raise ValueError("not plain")
    return tensor.untyped_storage()._cdata


def _outline(value: Any, depth: int = 2) -> list[Any]:
    """A value, and what it holds; for comparing by identity."""
    if depth == 0 or isinstance(value, (*_PLAIN_VALUES, *_NO_STATE)):
        return [value]
    if isinstance(value, _CONTAINERS):
        held = list(value)
    elif isinstance(value, dict):
        held = [*value, *value.values()]
    else:
        held = list(getattr(value, "__dict__", {}).values())
    found = [value, len(held)]
    for one in held[:_MOST_ELEMENTS]:
        found += _outline(one, depth - 1)
    return found


def are_alike(before: list[Any], now: list[Any]) -> bool:
    def alike(one: Any, other: Any) -> bool:
        return one is other or (type(one) is type(other) and isinstance(one, _PLAIN_VALUES) and one == other)

    return len(before) == len(now) and all(map(alike, before, now))


def _state_of(module: torch.nn.Module) -> list[Any]:
    """All that the module, and its parts, have."""
    found: list[Any] = []
    for part in module.modules():
        for name, value in vars(part).items():
            found += [name, *_outline(value)] if name not in ("_parameters", "_buffers", "_modules") else []
        tensors = [one for one in (*part._parameters.values(), *part._buffers.values()) if one is not None]
        found += [*part._modules.values(), *tensors, *(tensor.data_ptr() for tensor in tensors)]
    return found


def _are_kept(results: list[torch.Tensor], result: Any) -> bool:
    """Whether anybody but the caller has one of the results of a call that returns."""
    ours = {id(results), id(result)}
    waiting = [result]
    while waiting:  # the containers that it returns
        one = waiting.pop()
        held = list(one.values()) if isinstance(one, dict) else list(one) if isinstance(one, _CONTAINERS) else []
        ours.update(map(id, held))
        waiting += held
    for tensor in results:
        for holder in gc.get_referrers(tensor):
            if id(holder) not in ours and not isinstance(holder, (tuple, types.FrameType)):  # arguments of functions that run
                return True
    return False


def _context() -> list[Any]:
    return [one for pair in contextvars.copy_context().items() for one in pair]


# --- One call of a module ---


class ModuleCall:
    """A call of a module in a call of the step that is looked at."""

    def __init__(self, module: torch.nn.Module, around: "Optional[ModuleCall]", args: tuple, kwargs: dict) -> None:
        self.reference, self.around = weakref.ref(module), around
        self.key, self.name = id(module), type(module).__name__
        self.parts = set(map(id, module.modules()))
        self.is_over = self.reads = False
        self.why_not = ""  # why it cannot be a part
        self.results: set[Any] = set()  # memory
        leaves = pytree.tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        self.given = set(map(_memory_of, tensors))
        self._shapes = {tensor.shape for tensor in tensors}
        own = [*module.parameters(), *module.buffers()]
        own += [value for part in module.modules() for value in _outline(vars(part)) if isinstance(value, torch.Tensor)]
        self.own = set(map(_memory_of, own))
        self._arguments = [*args, *kwargs.values()]
        self._outline = _outline(self._arguments, 4)
        self.state = _state_of(module)
        self._context = _context()
        self._read: dict[tuple[int, str], tuple[dict, list[Any]]] = {}  # globals that its code names, behind the call
        self._named: list[tuple[dict, tuple[str, ...]]] = []
        if not all(isinstance(leaf, (torch.Tensor, *_PLAIN_VALUES)) for leaf in leaves):
            self.refuse("is given an object")
        if any(getattr(module, hooks) for hooks in _HOOKS):
            self.refuse("has hooks")
        if module._compiled_call_impl is not None or "forward" in vars(module) or isinstance(module, torch.jit.ScriptModule):
            self.refuse("has a forward that was replaced")
        if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
            self.refuse("is called under hooks on saved tensors")

    def refuse(self, why: str) -> None:
        self.why_not = self.why_not or why

    def note_code(self, frame: FrameType) -> None:
        """Of what it calls."""
        self._named.append((frame.f_globals, frame.f_code.co_names))

    def finish(self, result: Any) -> None:
        self.is_over = True
        for globals_, names in self._named:
            for name in names:
                if name in globals_ and not isinstance(globals_[name], _NO_STATE):
                    self._read[id(globals_), name] = (globals_, _outline(globals_[name]))
        self._named = []
        if not are_alike(self._outline, _outline(self._arguments, 4)):
            self.refuse("changes what it is given")
        self._arguments, self._outline = [], []
        module = self.reference()
        if module is None or not are_alike(self.state, _state_of(module)):
            self.refuse("sets an attribute")
        results = [leaf for leaf in pytree.tree_leaves(result) if leaf is not None]
        if not results or not all(type(leaf) in _PLAIN_TENSORS for leaf in results):
            return self.refuse("returns something else than tensors")
        if not all(tensor.dim() == 0 or tensor.shape in self._shapes for tensor in results):
            self.refuse("returns a tensor of another shape than it is given")
        self.results = set(map(_memory_of, results))
        if len(self.results) != len(results):
            self.refuse("returns tensors that share memory")
        if self.results & (self.given | self.own):
            self.refuse("returns what it is given, or has")
        if self.reads and _are_kept(results, result):
            self.refuse("keeps its result elsewhere")
        for tensor in results:
            if tensor.requires_grad:
                tensor.register_hook(self._see_gradient)
        return None

    def _see_gradient(self, gradient: torch.Tensor) -> None:
        if torch.is_grad_enabled():
            self.refuse("is differentiated twice (create_graph=True)")

    def compare_with_end(self) -> None:
        """The step is over."""
        module = self.reference()
        if module is None or not are_alike(self.state, _state_of(module)):
            self.refuse("is otherwise when the step is over")
        self.state = [one if isinstance(one, _PLAIN_VALUES) else id(one) for one in self.state]
        if not are_alike(self._context, _context()):
            self.refuse("is called in a context of its own")
        for (_, name), (globals_, before) in self._read.items():
            if name not in globals_ or not are_alike(before, _outline(globals_[name])):
                self.refuse(f"reads {name}, which the step changes")
        self._read, self._context = {}, []


# --- The call of the step ---


class Scout:
    """Context manager: looks at what this thread runs."""

    def __init__(self) -> None:
        self.reads: list[Read] = []
        self.calls: list[ModuleCall] = []
        self.failure = ""  # why nothing can be said
        self._open: list[tuple[FrameType, ModuleCall]] = []
        self._made: dict[Any, tuple[ModuleCall, ...]] = {}  # memory: the calls that it was made in
        self._seen: Any = None

    def __enter__(self) -> "Scout":
        if sys.getprofile() is not None:
            self.failure = "a profiler is on"
            return self
        scout = weakref.ref(self)  # C++ holds what follows, and Python's collector does not see that

        def note(*operation: Any) -> None:
            if (alive := scout()) is not None:
                alive._guarded(alive._note, *operation)

        self._seen = _C.OperationsSeen(note)
        self._seen.__enter__()
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._seen is None:
            return
        sys.setprofile(None)
        self._seen.__exit__(*exception)
        self._seen = None
        self._open = []
        for call in self.calls:
            self._guarded(call.compare_with_end)
            if not call.is_over:
                call.refuse("raises")

    def _guarded(self, function: Callable[..., None], *args: Any) -> None:
        try:
            function(*args)
        except Exception as error:
            self.failure = self.failure or f"it does what is not understood ({type(error).__name__}: {error})"

    def _profile(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            if frame.f_code is _CALL:
                self._guarded(self._begin, frame)
            elif self._open and not frame.f_code.co_filename.startswith(_TORCH):
                for _, call in self._open:
                    call.note_code(frame)
        elif event == "return" and self._open and self._open[-1][0] is frame:
            self._guarded(self._open.pop()[1].finish, arg)

    def _begin(self, frame: FrameType) -> None:
        if torch._C._current_graph_task_id() != -1:
            return  # in a backward pass: what it reads there no module is around
        module, args, kwargs = (frame.f_locals[name] for name in ("self", "args", "kwargs"))
        call = ModuleCall(module, self._open[-1][1] if self._open else None, args, kwargs)
        self.calls.append(call)
        self._open.append((frame, call))

    def _note(
        self,
        name: str,
        inputs: list[torch.Tensor],
        written: list[torch.Tensor],
        outputs: list[torch.Tensor],
        number: Any,
        reads: bool,
        is_copy_to_host: bool,
        draws: bool,
        is_backward: bool,
    ) -> None:
        now = () if is_backward else tuple(call for _, call in self._open)
        for call in now:
            call.reads = call.reads or reads or is_copy_to_host
        if (reads or is_copy_to_host) and not _is_of_optimizer():
            learnt = repr(number) if number is not None else [one.shape if reads else one.tolist() for one in outputs]
            self.reads.append(Read(name, learnt, users_line(), now[-1] if now else None))
        given = list(map(_memory_of, inputs))
        for tensor in outputs:
            if (memory := _memory_of(tensor)) not in given:
                self._made[memory] = now
        if is_backward:
            return
        for tensor, memory in zip(inputs, given):
            self._check_use(tensor, memory, now)
        for memory in map(_memory_of, written):
            for call in now:
                if call not in self._made.get(memory, ()):
                    call.refuse("writes a tensor in place")
        if draws:
            for call in now:
                call.refuse("draws random numbers")

    def _check_use(self, tensor: torch.Tensor, memory: Any, now: tuple[ModuleCall, ...]) -> None:
        made_in = self._made.get(memory)
        is_number = made_in is None and tensor.dim() == 0 and tensor.is_cpu and not tensor.requires_grad
        for call in now:
            is_known = memory in call.given or memory in call.own or call in (made_in or ())
            if not is_known and not is_number:
                call.refuse("uses a tensor that it is not given")
        for call in made_in or ():
            if call not in now and memory not in call.results:
                call.refuse("hands out a tensor by another way than its result")


def _is_of_optimizer() -> bool:
    """What an optimizer counts in tensors is the host's own."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        # Of no other frames: f_locals, once asked for, keeps what the variables of a frame had.
        if code.co_name == "step" and code.co_varnames[:1] == ("self",):
            if isinstance(frame.f_locals["self"], (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)):
                return True
        frame = frame.f_back
    return False
