"""Code that torch.compile made, as operations of the step that runs it.

Inductor's kernels are called past torch's dispatcher, where no observer sees what they read and write. While operations are
watched, they are called by operators of ours instead:

- on the CPU a whole compiled graph is one operation, which the tape calls again: it takes the graph's tensors, says which of
  them it writes, and returns its results;
- on CUDA each launch of a Triton kernel is one, so that each has edges of its own in a graph; what Inductor calls besides
  (products of cuBLAS) is torch's, and its buffers are allocated by torch's operator.

Nobody else meets these operators: a call that is not watched runs as torch made it.
"""

import functools
import re
import sys
import threading
import weakref
from types import CodeType, FrameType
from typing import Any, Callable, NamedTuple, Optional, Sequence

import torch
from torch._guards import CompileContext

from ._load import _C
from ._modes import as_in, modes

_library = torch.library.Library("pianola", "FRAGMENT")
_library.define("compiled_graph(int call, Tensor[] read, Tensor(a!)[] written) -> Tensor[]", tags=(torch.Tag.nondeterministic_seeded,))
_library.define("compiled_kernel(int call, Tensor[] read, Tensor(a!)[] written) -> ()")
_library.define("users_kernel(int call, Tensor[] read, Tensor(a!)[] written) -> ()")


_HOLE = object()  # stands for a tensor among the arguments or results of a call
_MOST_ENTRIES, _MOST_DEPTH = 1000, 4  # of containers that guards are given outlines of


class _Call(NamedTuple):
    """What a compiled graph or kernel is called with, but for its tensors: which are written, and all else."""

    run: Callable[..., Any]
    arguments: tuple  # _HOLE for each tensor
    written: frozenset[int]  # places in `arguments`

    def split(self, arguments: Sequence[Any]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The tensors that it reads alone, and those that it writes."""
        read: list[torch.Tensor] = []
        written: list[torch.Tensor] = []
        for place, value in enumerate(arguments):
            if isinstance(value, torch.Tensor):
                (written if place in self.written else read).append(value)
        return read, written

    def join(self, read: Sequence[torch.Tensor], written: Sequence[torch.Tensor]) -> list[Any]:
        """The arguments again."""
        tensors, changed = iter(read), iter(written)
        return [
            (next(changed) if place in self.written else next(tensors)) if value is _HOLE else value
            for place, value in enumerate(self.arguments)
        ]


class _Calls:
    """All calls that were ever watched, by their numbers: a tape calls them again, and a graph needs the code of its kernels."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._numbers: dict[tuple, int] = {}
        self._lock = threading.Lock()

    def number(self, owner: Any, run: Callable[..., Any], arguments: Sequence[Any], written: frozenset[int]) -> int:
        holes = tuple(_HOLE if isinstance(value, torch.Tensor) else value for value in arguments)
        key = (id(owner), written, tuple((type(value), repr(value)) for value in holes))  # 1 is not True, nor 0.0 -0.0
        with self._lock:
            number = self._numbers.get(key)
            if number is None:
                number = self._numbers[key] = len(self._calls)
                self._calls.append(_Call(run, holes, written))
            return number

    def __getitem__(self, number: int) -> _Call:
        return self._calls[number]


_calls = _Calls()


class _Here(threading.local):
    results: tuple = ()  # of the compiled graph that this thread ran last: _HOLE for each tensor
    launches = 0  # that are under way
    launch: dict = {}  # the stream of the one that begins, and its options


_here = _Here()


def _run_graph(number: int, read: list[torch.Tensor], written: list[torch.Tensor]) -> list[torch.Tensor]:
    call = _calls[number]
    results = call.run(call.join(read, written))
    _here.results = tuple(_HOLE if isinstance(value, torch.Tensor) else value for value in results)
    return [value for value in results if isinstance(value, torch.Tensor)]


def _run_kernel(number: int, read: list[torch.Tensor], written: list[torch.Tensor]) -> None:
    call = _calls[number]
    _here.launches += 1
    try:
        call.run(*call.join(read, written), **_here.launch)
    finally:
        _here.launches -= 1


_library.impl("compiled_graph", _run_graph, "CompositeExplicitAutograd")
_library.impl("compiled_kernel", _run_kernel, "CompositeExplicitAutograd")
_library.impl("users_kernel", _run_kernel, "CompositeExplicitAutograd")


# --- In the place of Inductor's calls ---

_INDUCTORS = ("in_ptr", "out_ptr", "in_out_ptr", "ws_ptr", "sem_ptr")  # tensors of the kernels that Inductor writes itself
_WRITTEN = ("out_ptr", "in_out_ptr", "ws_ptr", "sem_ptr")  # as Inductor names what its kernels write
_PLAIN = (torch.Tensor, int, float, bool, str, type(None))
_GRAPHS_OF_ITS_OWN = "the step runs code that torch.compile(mode='reduce-overhead') made, which makes graphs of its own"
_NEW = "torch.compile compiles code while the step runs"
_ON_THE_CPU = "the step runs code that torch.compile made, a part of which computes on the CPU, where no graph of a GPU sees it"
_IN_CPP = "the step runs code that torch.compile made with cpp_wrapper, whose launches nobody sees"
_READS = "the step runs code that torch.compile made, which reads a value on the host, or makes a tensor whose size depends on values"
_UNKNOWN_ARGUMENT = "the step runs code that torch.compile made, which gives a kernel {}, and a graph's checks cannot see into it"


class _Installed:
    """What stands in torch by now."""

    graphs: Optional[Callable] = None  # Inductor's own CompiledFxGraph.__call__
    kernels: Optional[Callable] = None  # Inductor's own CachingAutotuner.run
    modules = 0  # of compiled code, whose allocations are torch's operator by now


# Backends whose code calls torch's operators, or what stands in for Inductor's own calls here.
_KNOWN_BACKENDS = ("inductor", "eager", "eager_noexcept", "eager_debug", "pre_dispatch_eager", "aot_eager", "aot_eager_decomp_partition",
                   "aot_eager_decomp_partition_with_mode")  # fmt: skip


def install() -> bool:
    """Before compiled code runs in a watched call, as often as one likes.

    @return: Whether what such code calls can be seen: not that of backends that nobody knows, if this process has any.
    """
    frames = sys.modules.get("torch._dynamo.eval_frame")
    backends = getattr(frames, "cached_backends", {}).values()
    if any(backend is not None and getattr(backend, "compiler_name", "") not in _KNOWN_BACKENDS for backend in backends):
        return False
    graphs = sys.modules.get("torch._inductor.output_code")
    if graphs is not None and _Installed.graphs is None:
        _Installed.graphs = graphs.CompiledFxGraph.__call__
        graphs.CompiledFxGraph.__call__ = functools.wraps(_Installed.graphs)(_call_graph)
    kernels = sys.modules.get("torch._inductor.runtime.triton_heuristics")
    if kernels is not None and _Installed.kernels is None:
        _Installed.kernels = kernels.CachingAutotuner.run
        kernels.CachingAutotuner.run = functools.wraps(_Installed.kernels)(_launch)
    return True


def _call_graph(compiled: Any, inputs: Any) -> Any:
    assert _Installed.graphs is not None
    if not _C.operations_are_watched():
        return _Installed.graphs(compiled, inputs)
    if _is_first_call():
        _C.note_compiled_code(_NEW, is_new=True)
        return _Installed.graphs(compiled, inputs)
    if compiled.fx_kwargs.get("cudagraphs"):
        _C.note_compiled_code(_GRAPHS_OF_ITS_OWN)
        return _Installed.graphs(compiled, inputs)
    if "cuda" in compiled.device_types:
        if "cpu" in compiled.device_types:
            _C.note_compiled_code(_ON_THE_CPU)
        if compiled.fx_kwargs.get("cpp_wrapper"):
            _C.note_compiled_code(_IN_CPP)
        _let_torch_allocate()
        return _Installed.graphs(compiled, inputs)
    if _reads_values(compiled):
        _C.note_compiled_code(_READS)
        return _Installed.graphs(compiled, inputs)
    number = _calls.number(compiled, functools.partial(_Installed.graphs, compiled), inputs, frozenset(compiled.mutated_input_idxs))
    tensors = torch.ops.pianola.compiled_graph(number, *_calls[number].split(inputs))
    results = iter(tensors)
    return tuple(next(results) if value is _HOLE else value for value in _here.results)


def is_compiling() -> bool:
    """Whether torch makes code on this thread, or looks at what it has just made."""
    return CompileContext.try_get() is not None or _is_first_call()


def _is_first_call() -> bool:
    """Of code that was made in this call, which torch looks at by a mode of its own (FirstInvocationContext of AOTAutograd's)."""
    mode = torch.utils._python_dispatch._get_current_dispatch_mode()
    return mode is not None and type(mode).__name__ == "_AnalyzeCustomOpInputOutputMode"


def _reads_values(compiled: Any) -> bool:
    """Whether its code has numbers that are known only when it runs: Inductor calls them u0, u1, ..."""
    return re.search(r"\bu\d+\b|\.item\(\)", getattr(compiled, "source_code", None) or "") is not None


def _let_torch_allocate() -> None:
    """Buffers of compiled code by torch's operator, which a watch sees as an allocation; where nobody watches, as they were."""
    from torch._inductor.codecache import PyCodeCache

    modules = PyCodeCache.modules
    known = _Installed.modules if _Installed.modules <= len(modules) else 0  # cache_clear() empties the list
    for module in modules[known:]:
        own = module.__dict__.get("empty_strided_cuda")
        if own is not None and not isinstance(own, functools.partial):
            module.__dict__["empty_strided_cuda"] = functools.partial(_allocate, own)
    _Installed.modules = len(modules)


def _allocate(own: Callable, size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    if not _C.operations_are_watched():
        return own(size, stride, dtype)
    return torch.empty_strided(size, stride, dtype=dtype, device="cuda")


def _launch(kernel: Any, *arguments: Any, stream: Any, **options: Any) -> Any:
    run = _Installed.kernels
    assert run is not None
    if not _C.operations_are_watched():
        return run(kernel, *arguments, stream=stream, **options)
    strange = next((value for value in arguments if not isinstance(value, _PLAIN)), None)
    if strange is not None:
        _C.note_compiled_code(_UNKNOWN_ARGUMENT.format(type(strange).__name__))
        return run(kernel, *arguments, stream=stream, **options)
    number = _calls.number(kernel, functools.partial(run, kernel), arguments, _written_by(kernel, arguments))
    _here.launch = {"stream": stream, **options}
    launch = torch.ops.pianola.compiled_kernel if _is_inductors(kernel, arguments) else torch.ops.pianola.users_kernel
    launch(number, *_calls[number].split(arguments))
    return None


def launches() -> bool:
    """Whether this thread runs what Triton does for a launch: code that is none of the step's."""
    return _here.launches > 0


def _is_inductors(kernel: Any, arguments: Sequence[Any]) -> bool:
    """Whether Inductor has written it itself, and named what it is given. Others may reach memory that is in no tensor."""
    names = _names_in(kernel)
    has_names = all(place < len(names) and names[place].startswith(_INDUCTORS) for place in _tensors_at(arguments))
    return has_names and getattr(kernel, "mutated_arg_names", None) is not None and not getattr(kernel, "custom_kernel", False)


def _names_in(kernel: Any) -> list[str]:
    return list(kernel.triton_meta["signature"])  # numbers that are constants in the kernel are given as well


def _tensors_at(arguments: Sequence[Any]) -> list[int]:
    return [place for place, value in enumerate(arguments) if isinstance(value, torch.Tensor)]


def _written_by(kernel: Any, arguments: Sequence[Any]) -> frozenset[int]:
    """Places of tensors that the kernel may write: all, where it is none of Inductor's."""
    tensors = _tensors_at(arguments)
    if not _is_inductors(kernel, arguments):
        return frozenset(tensors)
    names, changed = _names_in(kernel), kernel.mutated_arg_names
    return frozenset(place for place in tensors if names[place] in changed or names[place].startswith(_WRITTEN))


# --- What was compiled for which arguments and settings ---


class Guards:
    """Dynamo's guards of compiled code that a call ran: whether it would run the same code again.

    They hold or not under the modes of the place where the code is called, which may be others where a call begins.

    Args:
        manager: dynamo's.
        variables: of the frame that runs the code.
        under: the modes then, see modes().
    """

    def __init__(self, manager: Any, variables: dict, under: tuple) -> None:
        self._manager = manager
        self._variables = variables
        self._modes = under
        self._stance = stance()

    def hold(self) -> bool:
        if self._manager.cache_entry is None or stance() != self._stance:  # dynamo has dropped the code, or is told to run none
            return False
        if modes() == self._modes:
            return self._manager.check(self._variables)
        with as_in(self._modes):
            return self._manager.check(self._variables)


def is_compiled(code: CodeType) -> bool:
    """Whether it is what dynamo made of a function's."""
    utils = sys.modules.get("torch._dynamo.utils")
    return utils is not None and code in utils.orig_code_map


def _original(code: CodeType) -> CodeType:
    return sys.modules["torch._dynamo.utils"].orig_code_map[code]


def optimizer_of(frame: FrameType) -> Optional[torch.optim.Optimizer]:
    """One whose step the compiled code that the frame runs may have in itself."""
    names = _original(frame.f_code).co_names
    values = [*frame.f_locals.values(), *(frame.f_globals.get(name) for name in names)]
    owners = (getattr(value, "__self__", value) for value in values)
    return next((owner for owner in owners if isinstance(owner, torch.optim.Optimizer)), None)


def guards_of(frame: FrameType) -> Optional[Guards]:
    """None where the frame does not run code that torch.compile made."""
    if not is_compiled(frame.f_code):
        return None
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    for entry in _debug_get_cache_entry_list(_original(frame.f_code)):
        if entry.code is frame.f_code:
            return _guards_for(entry.guard_manager, frame.f_locals, frame.f_code.co_freevars)
    return None


_known_guards: weakref.WeakValueDictionary[tuple, Guards] = weakref.WeakValueDictionary()  # so that equal calls share them


def _guards_for(manager: Any, variables: dict, cells: tuple[str, ...]) -> Guards:
    now = modes()
    known: dict[int, Any] = {}
    outlines = {name: value if name in cells else outline(value, known) for name, value in variables.items()}
    key = (id(manager), now, tuple((name, id(value) if name in cells else _key_of(value)) for name, value in variables.items()))
    guards = _known_guards.get(key)
    if guards is None:
        guards = _known_guards[key] = Guards(manager, outlines, now)
    return guards


def _key_of(value: Any) -> Any:
    """Equal for values that guards cannot tell apart, while somebody holds them."""
    if _has_outline(value):
        return value.shape, value.stride(), value.storage_offset(), value.dtype, value.device, value.requires_grad, value.is_inference()
    if not _holds_tensors(value):
        return id(value)
    if type(value) is dict:
        return dict, *((key, _key_of(one)) for key, one in value.items())
    return type(value), *map(_key_of, value)


def _holds_tensors(value: Any, depth: int = 0) -> bool:
    """Whether it is a small container of what has an outline: others are looked at as they are, so that changes are seen."""
    if type(value) not in (list, tuple, dict) or len(value) > _MOST_ENTRIES or depth > _MOST_DEPTH:
        return False
    values = value.values() if type(value) is dict else value
    return any(_has_outline(one) or _holds_tensors(one, depth + 1) for one in values)


def stance() -> Any:
    """What torch.compiler.set_stance() says."""
    return sys.modules["torch._dynamo.eval_frame"]._stance.stance


def _has_outline(value: Any) -> bool:
    return type(value) is torch.Tensor and value.layout is torch.strided


def outline(value: Any, known: dict[int, Any]) -> Any:
    """The same to guards, without the memory of tensors that the step or its caller made.

    Args:
        known: what was made of a value before, by its id.
    """
    if id(value) in known:
        return known[id(value)]
    if _has_outline(value):
        result: Any = _C.outline_of(value)
    elif not _holds_tensors(value):
        return value
    elif type(value) is dict:
        result = {key: outline(one, known) for key, one in value.items()}
    else:
        result = type(value)(outline(one, known) for one in value)
    known[id(value)] = result
    return result
