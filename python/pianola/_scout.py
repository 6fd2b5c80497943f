"""Looks at an eager call of a step: which of its values the host reads, in which calls of modules and functions, and which of these could be
parts that stay eager while all around them is a graph (`_found_parts`). Whatever Scout does not understand is none.
"""

import contextvars
import os
import sys
import weakref
from types import CodeType, FrameType
from typing import Any, Callable, NamedTuple, Optional

import torch

from ._found_calls import STAND_IN, FoundFunction
from ._functions_around import FunctionsAround
from ._load import _C
from ._recording import users_line
from ._seen_call import Closures, SeenCall, memory_of

_CALL: CodeType = torch.nn.Module._call_impl.__code__
_MOST_VALUES = 4096  # that are kept
_COPIES_ON_THE_CPU = ("tolist", "numpy")
_METHODS = (*_COPIES_ON_THE_CPU, "get", "set")
_NOT_ITS_OWN = (torch.__path__[0], os.path.dirname(__file__))


class Read(NamedTuple):
    operation: str
    value: Any  # what the host learns
    where: str
    call: Optional[SeenCall]  # the innermost one


class Scout:
    """Context manager: looks at what this thread runs; at calls of functions where a FoundFunction stands in for them."""

    def __init__(self) -> None:
        self.reads: list[Read] = []
        self.calls: list[SeenCall] = []
        self.failure = ""  # why nothing can be said
        self.has_looked = False  # else a profiler was on
        self._closures = Closures()
        self._around = FunctionsAround(sys._getframe(1))
        self._open: list[tuple[FrameType, SeenCall]] = []
        self._made: dict[Any, tuple[SeenCall, ...]] = {}  # memory: the calls that it was made in
        self._seen: Any = None

    def __enter__(self) -> "Scout":
        if sys.getprofile() is not None:
            return self
        self.has_looked = True
        scout = weakref.ref(self)  # C++ holds what follows, and Python's collector does not see that

        def note(*operation: Any) -> None:
            if (alive := scout()) is not None:
                alive._guarded(alive._note, *operation)

        self._seen = _C.OperationsSeen(note)
        self._seen.__enter__()
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *exception: Any) -> None:
        self._around.finish()
        if self._seen is None:
            return
        if sys.getprofile() == self._profile:  # the step may have set one
            sys.setprofile(None)
        self._seen.__exit__(*exception)
        self._seen = None
        self._open, self._closures = [], Closures()
        for call in self.calls:
            self._guarded(call.compare_with_end)
            if not call.is_over:
                call.refuse("raises")

    def functions(self) -> list[FoundFunction]:
        """Around what was read; calls of those that something stood in for were looked at."""
        return self._around.found()

    def _guarded(self, function: Callable[..., None], *args: Any) -> None:
        try:
            function(*args)
        except Exception as error:
            self.failure = self.failure or f"it does what is not understood ({type(error).__name__}: {error})"

    def _profile(self, frame: FrameType, event: str, arg: Any) -> None:
        self._guarded(self._note_event, frame, event, arg)  # what it raised would come out of the step

    def _note_event(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            if frame.f_code is _CALL or frame.f_code is STAND_IN:
                self._begin(frame)
            elif self._open and not frame.f_code.co_filename.startswith(_NOT_ITS_OWN):
                for _, call in self._open:
                    call.note_code(frame, self._closures)
        elif event == "return" and self._open and self._open[-1][0] is frame:
            self._open.pop()[1].finish(arg)
        elif event == "c_call" and (method := getattr(arg, "__name__", "")) in _METHODS:
            if method in _COPIES_ON_THE_CPU:
                self._note_copy(arg)
            elif isinstance(arg.__self__, contextvars.ContextVar):
                for _, call in self._open:
                    call.note_variable(arg.__self__)

    def _begin(self, frame: FrameType) -> None:
        if torch._C._current_graph_task_id() != -1:
            return  # in a backward pass: what it reads there no call is around
        of = frame.f_locals
        around = self._open[-1][1] if self._open else None
        if frame.f_code is STAND_IN:
            call = SeenCall.of_function(of["part"], around, of["args"], of["kwargs"])
        else:
            call = SeenCall.of_module(of["self"], around, of["args"], of["kwargs"])
            for _, outer in self._open:
                outer.parts |= call.parts
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
        if reads or is_copy_to_host:
            self._note_read(name, repr(number) if number is not None else [one.shape if reads else _values_of(one) for one in outputs], now)
        given = list(map(memory_of, inputs))
        for tensor in outputs:
            if (memory := memory_of(tensor)) not in given:
                self._made[memory] = now
        if is_backward:
            for _, call in self._open:
                call.refuse("runs a backward pass")
            return
        for tensor, memory in zip(inputs, given):
            self._check_use(tensor, memory, now)
        for memory in map(memory_of, written):
            for call in now:
                if call not in self._made.get(memory, ()):
                    call.refuse("writes a tensor in place")
        if draws:
            for call in now:
                call.refuse("draws random numbers")

    def _note_copy(self, method: Any) -> None:
        """Of a tensor on the CPU, which is no operation there."""
        tensor = getattr(method, "__self__", None)
        if isinstance(tensor, torch.Tensor) and tensor.is_cpu:
            is_backward = torch._C._current_graph_task_id() != -1
            now = () if is_backward else tuple(call for _, call in self._open)
            self._check_use(tensor, memory_of(tensor), now)
            self._note_read(f"Tensor.{method.__name__}", _values_of(tensor), now)

    def _note_read(self, name: str, learnt: Any, now: tuple[SeenCall, ...]) -> None:
        for call in now:
            call.reads = True
        if _is_of_optimizer():
            return
        if torch._C._current_graph_task_id() == -1:
            self._around.note()
            innermost = now[-1] if now else None
        else:
            innermost = self._whose_backward()
        self.reads.append(Read(name, learnt, users_line(), innermost))

    def _whose_backward(self) -> Optional[SeenCall]:
        """The innermost call, of those that read in their forward pass, that made the node of autograd's which runs."""
        node = torch._C._current_autograd_node()
        made = -1 if node is None else node._sequence_nr()
        return next((call for call in reversed(self.calls) if call.reads and made in call.nodes), None)

    def _check_use(self, tensor: torch.Tensor, memory: Any, now: tuple[SeenCall, ...]) -> None:
        made_in = self._made.get(memory)
        is_number = made_in is None and tensor.dim() == 0 and tensor.is_cpu and not tensor.requires_grad
        for call in now:
            is_known = memory in call.given or memory in call.own or call in (made_in or ())
            if not is_known and not is_number:
                call.refuse("uses a tensor that it is not given")
        for call in made_in or ():
            if call not in now and memory not in call.results:
                call.refuse("hands out a tensor by another way than its result")


def _values_of(tensor: torch.Tensor) -> Any:
    """Of one on the CPU, to be compared."""
    if tensor.numel() <= _MOST_VALUES:
        return tensor.tolist()
    return tensor.shape, hash(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())


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
