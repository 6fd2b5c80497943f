"""`@pianola.graphed`: a function or module that captures its own calls."""

import functools
import logging
import weakref
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Generic,
    Iterable,
    NoReturn,
    Optional,
    ParamSpec,
    Protocol,
    TypeVar,
    Union,
    overload,
)

import torch
from torch.nn.utils import parametrize
from torch.utils.weak import WeakIdKeyDictionary

from ._arguments import as_bytes
from ._arriving import Arrivals
from ._call import Call, name_of
from ._choices import check_compile, chosen, grad_policy
from ._draws import Draws
from ._errors import refuse
from ._found_parts import FoundParts
from ._graph_pool import pool_to_capture_into
from ._handed_on import HandedOn
from ._host_states import State, States
from ._host_watch import HostWatch
from ._load import _C
from ._named_gradients import see_names
from ._patching import replace, replacement, restore
from ._structure import of_arguments
from ._temporary_arguments import TemporaryArguments
from ._weakly import Weakly, bound_weakly, forward_of

if TYPE_CHECKING:
    from typing_extensions import Concatenate, Self

    from ._options import GraphedOptions, Unpack

_log = logging.getLogger("pianola")
Arguments = ParamSpec("Arguments")
Others = ParamSpec("Others")
Owner = TypeVar("Owner")
Result = TypeVar("Result", covariant=True)
Module = TypeVar("Module", bound=torch.nn.Module)


def taken(signature: "_C.SignatureInfo") -> list[str]:
    """What a replay of a signature is, and on how many lanes it runs."""
    said = [signature.gain] if signature.gain else []
    for one in signature.branches:
        if one.rebuilt and one.serial_us > 0:
            said.append(f"{one.lanes} lanes, {one.rebuilt_us:.0f} us in place of {one.serial_us:.0f} us")
        else:
            said.append(f"{one.lanes} lanes, {one.untimed}" if one.rebuilt else f"one lane: {one.reason}")
    return said


class GraphedFunction(Generic[Arguments, Result]):
    """A function whose calls are captured per signature and replayed. Made by `pianola.graphed`."""

    def __init__(
        self,
        function: Callable[Arguments, Result],
        options: dict[str, Any],
        module: Optional[torch.nn.Module] = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.original = function
        self._options = options
        self._module = None if module is None else weakref.ref(module)
        self._run = function  # what eager runs call
        self._arrivals = Arrivals(Weakly(self.run_original), Weakly(self._running), Weakly(self._deliver))
        self.draws = Draws(Weakly(self.run_original), Weakly(self._running))
        self._owned: Any = WeakIdKeyDictionary()  # per object, where it is a method
        self.states = States(capacity=4 * options["capacity"])
        self.handed_on = HandedOn()
        self.watch = HostWatch(function, options["warmup"], self.handed_on)
        self.temporary = TemporaryArguments()
        self._has_told = False
        self.checks_reads = options["islands"] != "marked"
        self.found = FoundParts()
        see_names()
        self._cache = _C.GraphedCache(_cache_options(options, Weakly(self._report)), Weakly(self.run_original), module)

    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if torch.compiler.is_compiling():  # inside of code that torch.compile takes: the function becomes part of it
            return self.original(*args, **kwargs)
        if self._module is not None and self._module() is None:
            return self.original(*args, **kwargs)  # which says that it is gone
        if self.found.phase:
            return self.found.call(self, args, kwargs)
        if self.handed_on.places:
            return self.call_known(args, kwargs)
        return self._cache.call(self, args, kwargs)

    def call_known(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call, with the parts that are known."""
        if self.handed_on.places:
            with self.handed_on:
                return self._cache.call(self, args, kwargs)
        return self._cache.call(self, args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that the cache does not know, or whose state has changed. The cache knows calls that were replayed, until
        `states` has something new to say."""
        drawn = self.draws.expected(args, kwargs) if self.draws.are_followed else None
        if drawn is not None:
            return self.draws.call(drawn, args, kwargs)
        leaves, structure = of_arguments(args, kwargs)
        if self._arrivals.are_expected:
            arrived = self._arrivals.call(leaves, args, kwargs)
            if arrived is not None:
                return arrived.value
        opened = self.temporary.open(args, kwargs, structure) if structure.frozen else None
        if opened is not None:
            leaves, structure = of_arguments(*opened.arguments)
        elif self.states.runs_unseen(structure) or parametrize._cache_enabled:  # a capture would leave its own in the cache
            return Call(self, args, kwargs, structure).run_eagerly()
        state, reason = self.states.find(structure, arguments=(args, kwargs) if opened is None else opened.arguments)
        if reason is not None:
            self._cache.refuse(state.number, reason, *leaves)
        guarded = state.guarded
        call = Call(self, args, kwargs, structure, state, opened)
        replayed = self._cache.run(state.number, call, state.slot_values(call.values), *leaves)
        if replayed is None:
            if guarded[0] is None or state.guarded is not guarded:  # a new state, or more is known of it now
                self._cache.forget()
            return call.result
        state.note_replay()
        if not self._has_told:
            self._tell()
        if state.captures_plainly:  # of these numbers alone
            self.states.tell_apart(state, state.captures_plainly)
        elif opened is None:
            self._cache.remember(state, state.number, args, kwargs, call.followed)
        outputs, flat = replayed
        return flat.rebuild(outputs, call.values)

    def _call_in(self, state: State, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """A call that the cache knows, and does not replay."""
        return Call(self, args, kwargs, of_arguments(args, kwargs)[1], state)

    def run_original(self, *args: Any, **kwargs: Any) -> Any:
        """The function itself, eagerly."""
        return self._run(*args, **kwargs)

    def expect_arrivals(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Inputs are on the CPU, and the function computes on another device: perhaps it brings them there."""
        return self._arrivals.expect(of_arguments(args, kwargs)[0])

    def _running(self, run: Callable[..., Any]) -> "GraphedFunction[..., Any]":
        made: GraphedFunction[..., Any] = GraphedFunction(self.original, self._options, None if self._module is None else self._module())
        made._run = run
        return made

    def _deliver(self, *arriving: Any) -> None:
        if not self.draws.are_followed:
            self._cache.deliver(*arriving)

    def structure_of(self, key: int) -> Any:
        """The structure of the arguments of calls with this key."""
        return self.states.structure_of(key)

    def _tell(self) -> None:
        """What its first replay is."""
        self._has_told = True
        if _log.isEnabledFor(logging.INFO):
            for one in self._cache.info().signatures[:1]:
                _log.info("%s is replayed: %s", name_of(self.original), "; ".join(taken(one)))

    def _report(self, reason: str) -> None:
        if self.checks_reads and self._options["compile"] is False and self.found.may_look(self._cache.info(), reason):
            return  # perhaps it need not be so
        if not self.found.has_dropped(self, reason):
            self.tell_fallback(reason + self.found.note)

    def tell_fallback(self, reason: str) -> None:
        """Why calls stay eager."""
        listener = self._options["on_fallback"]
        if listener is None:
            _log.warning("%s runs eagerly: %s", name_of(self.original), reason)
        else:
            listener(reason)

    @overload
    def __get__(self, owner: None, kind: Any = None) -> "Self": ...
    @overload
    def __get__(
        self: "GraphedFunction[Concatenate[Owner, Others], Result]", owner: Owner, kind: Any = None
    ) -> "GraphedFunction[Others, Result]": ...
    def __get__(self, owner: Any, kind: Any = None) -> Any:
        """A method: each object has graphs of its own."""
        if owner is None:
            return self
        bound = self._owned.get(owner)
        if bound is None:
            module = owner if isinstance(owner, torch.nn.Module) else None
            bound = self._owned[owner] = type(self)(bound_weakly(self.original, owner), self._options, module)
        held = type(self).__new__(type(self))
        held.__dict__.update(bound.__dict__, __self__=owner)  # as a bound method, it keeps its object alive
        return held

    @property
    def calls_before_replay(self) -> int:
        """Calls of a signature until it is replayed: the warm-up calls and the one that captures. If the first call does
        what later ones do not, up to two more."""
        return int(self._options["warmup"]) + 1

    def replays(self) -> int:
        """Of all signatures that the cache knows."""
        return sum(one.replays for one in self._cache.info().signatures)

    def misses(self) -> int:
        """Of all signatures that the cache knows: replays that were taken back."""
        return sum(one.misses for one in self._cache.info().signatures)

    def info(self) -> "_C.GraphedInfo":
        """What is known and kept, per signature: state, kind, replays, and why calls stay eager, or were
        captured again."""
        info = self._cache.info()
        info.unfollowed = self.states.unfollowed()
        info.numbers = self.states.numbers()
        info.parts = self.found.said
        for other in (*self._arrivals.functions(), *self.draws.functions()):
            theirs = other.info()
            info.signatures = theirs.signatures + info.signatures
            info.input_bytes += theirs.input_bytes
            info.numbers = theirs.numbers + info.numbers
        return info

    def backward_dw(self) -> bool:
        """Computes the gradients of weights that the oldest backward has left for later (`delay_weight_gradients`).

        Once for each backward; `p.grad` is then what one backward would have made it. False: none has left any.
        """
        caches = [self._cache, *(other._cache for other in (*self._arrivals.functions(), *self.draws.functions()))]
        oldest = min((cache for cache in caches if cache.oldest_debt()), key=lambda cache: cache.oldest_debt(), default=None)
        return oldest is not None and oldest.backward_weights()

    def forget_graphs(self) -> None:
        """Forgets all signatures and drops their graphs."""
        self._cache.forget()
        self._cache.reset()
        self._arrivals.forget()
        self.draws.forget()
        self.handed_on.forget()
        self._has_told = False

    def reset(self) -> None:
        """Forgets all signatures and drops their graphs; the next calls warm up again."""
        self.forget_graphs()
        module = None if self._module is None else self._module()
        if module is not None:
            restore(module, self)
            if getattr(module.__dict__.get("backward_dw"), "__self__", None) is self:
                object.__delattr__(module, "backward_dw")

    def _refuse_to_be_copied(self, how: str) -> NoReturn:
        refuse(
            f"a graphed function cannot be {how}: its graphs are bound to this process and to the memory of its parameters",
            "copy or save it before it is graphed, call its reset() first (remove() of graph_layers), or save the module's state_dict()",
            where=name_of(self.original),
        )

    def __deepcopy__(self, memo: Any) -> NoReturn:
        self._refuse_to_be_copied("deep-copied")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        self._refuse_to_be_copied("pickled")


def function_of(step: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, where it is graphed."""
    return step.original if isinstance(step, GraphedFunction) else step


def _cache_options(options: dict[str, Any], report: Callable[[str], None]) -> "_C.GraphedOptions":
    pool = options["pool"]
    family = pool if isinstance(pool, _C.GraphPoolFamily) else None
    return _C.GraphedOptions(
        warmup=options["warmup"],
        capacity=options["capacity"],
        max_in_flight=options["max_in_flight"],
        output=chosen(_C.OutputPolicy, options["outputs"], "outputs"),
        grad=grad_policy(options["grad"]),
        delay_weight_gradients=options["delay_weight_gradients"],
        retain_graph=options["retain_graph"],
        memory_limit=options["memory_limit"],
        plan_memory=options["plan_memory"],
        accept_capture_path=options["accept_capture_path"],
        pool=None if pool is family else (pool.device, pool.id),
        family=family,
        generators=list(options["generators"]),
        branches=options["branches"],
        parallel=options["parallel"],
        checks_reads=options["islands"] != "marked",
        mode=options["capture_error_mode"],
        on_fallback=report,
    )


class Decorator(Protocol):
    """What `graphed(...)` without a target gives: `graphed`, with these options."""

    @overload
    def __call__(self, target: Module, /) -> Module: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, target: Callable[Arguments, Result], /) -> GraphedFunction[Arguments, Result]: ...


@overload
def graphed(target: Module, **options: "Unpack[GraphedOptions]") -> Module: ...  # type: ignore[overload-overlap]
@overload
def graphed(
    target: Callable[Arguments, Result], **options: "Unpack[GraphedOptions]"
) -> GraphedFunction[Arguments, Result]: ...
@overload
def graphed(target: None = None, **options: "Unpack[GraphedOptions]") -> Decorator: ...
def graphed(
    target: Any = None,
    *,
    warmup: int = 3,
    capacity: int = 64,
    max_in_flight: int = 4,
    outputs: Any = "clone",
    grad: Any = "accumulate",
    delay_weight_gradients: bool = False,
    retain_graph: bool = False,
    memory_limit: int = 0,
    plan_memory: bool = False,
    accept_capture_path: bool = False,
    pool: Any = None,
    generators: Iterable[torch.Generator] = (),
    branches: Union[int, str] = "auto",
    parallel: "Optional[_C.ParallelOptions]" = None,
    islands: str = "auto",
    compile: Union[bool, str] = False,
    closeness: Optional[float] = None,
    capture_error_mode: str = "thread_local",
    on_fallback: Optional[Callable[[str], Any]] = None,
) -> Any:
    """Makes a function or module capture its own calls. Nothing else is needed.

        @pianola.graphed
        def train_step(x, y):
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        model = pianola.graphed(model)          # inference, or training with a backward() outside

    The first `warmup` calls of a signature (shapes, dtypes, devices, structure, arguments that are no tensors, training
    flags, grad mode, autocast, and all that its Python reads: globals, closures, attributes, containers, modules,
    optimizers) run eagerly, the next one is captured, later ones are replayed. What cannot be captured
    runs eagerly, and the reason is logged once ("pianola" logger, or `on_fallback`). A function that trains by itself
    returns tensors without history. What a function prints, counts or appends in Python happens only when it really runs.

    Args:
        target: a function, method or module. A module is patched and returned.
        warmup: eager calls of a signature before it is captured; at least 1. With 1 or 2, up to two more where the first
            call makes what later ones find.
        capacity: signatures that keep graphs; beyond that the one not called for longest loses its own.
        max_in_flight: calls of one signature between forward and backward at once; further ones run eagerly.
        outputs: "clone": results are the caller's. "alias": the next call overwrites them, which spares the copies.
        grad: GradPolicy or its name: how gradients of parameters are handed out when backward() runs outside.
        delay_weight_gradients: when backward() runs outside, a replayed call's leaves the gradients of weights (of linear and
            convolution layers) for later; `backward_dw()` computes them, once for each backward. Those of calls that ran eagerly leave
            nothing for it.
        retain_graph: let backward(retain_graph=True) be followed by another one.
        memory_limit: bytes that a graph's pool may take, as its last eager call shows it; 0: no limit. Calls that would take more stay
            eager. Of calls whose backward() runs outside, what the forward pass takes. So do calls whose static inputs alone take more.
        plan_memory: as for pianola.Graph.capture, of calls that train by themselves, and in one region for all signatures: what their
            graphs leave behind, and the largest scratch. Other GPUs and processes cannot read it. "auto" takes no lanes then.
        accept_capture_path: accept a capture whose operations differ from those of the call before it, because a library
            asks whether it is captured. Off: such calls stay eager.
        pool: a GraphPool to share, for graphs without a backward pass; or a GraphPoolFamily, for all.
        generators: torch.Generators, besides the default one, that it draws from.
        branches, parallel: as for pianola.Graph.capture: what is independent runs at once. "auto": on four lanes, where a trial
            finds that faster; 0: never.
        islands: what stays on the host while a graph is replayed. "marked": what pianola.eager marks. "auto": reads of values as well
            (`if loss.item() > 5`, `x[mask]`): a replay runs up to each, reads, and goes on where it says what it said to the capture;
            else the call is made eagerly, and where that is so too often, all calls are. Modules and functions around reads that change
            from call to call are left out of the graph, where that is faster.
        compile: True: the modules that the function calls are compiled by Inductor, and its kernels are part of the graph. "auto":
            where they are at least 2 % faster. Calls go to the plain graph until the compiled one is there; what cannot be
            compiled stays plain. Compiled kernels round differently: info().compiled says by how much, and what was chosen;
            state_dict() keeps the choice.
        closeness: the most that a compiled module may differ from eager, as a share of the largest value, or it stays plain; None:
            any, and info() says it.
        capture_error_mode: as for pianola.graph.
        on_fallback: called with the reason, once per signature, instead of the log.
    """
    if islands not in ("marked", "auto"):
        refuse(f"islands must be 'marked' or 'auto', got {islands!r}")
    if not isinstance(pool, _C.GraphPoolFamily):
        pool_to_capture_into(pool, "graphed")
    options = dict(
        warmup=warmup,
        capacity=capacity,
        max_in_flight=max_in_flight,
        outputs=outputs,
        grad=grad,
        delay_weight_gradients=delay_weight_gradients,
        retain_graph=retain_graph,
        memory_limit=as_bytes(memory_limit, "memory_limit"),
        plan_memory=plan_memory,
        accept_capture_path=accept_capture_path,
        pool=pool,
        generators=tuple(generators),
        branches=branches,
        parallel=parallel,
        islands=islands,
        compile=compile,
        closeness=closeness,
        capture_error_mode=capture_error_mode,
        on_fallback=on_fallback,
    )
    return functools.partial(_graphed, options=options) if target is None else _graphed(target, options)


def _kind_of(options: dict[str, Any]) -> type[GraphedFunction]:
    if options["compile"] is False:
        return GraphedFunction
    from ._compile_choice import ChoosingFunction  # which asks for the compiler

    return ChoosingFunction


def _graphed(target: Any, options: dict[str, Any]) -> Any:
    check_compile(options["compile"], options["closeness"])
    if isinstance(target, type):
        refuse(
            f"graphed was put on the class {target.__qualname__}", "put it on its method, or on an object: pianola.graphed(model)"
        )
    if not callable(target):
        refuse(f"a {type(target).__qualname__} cannot be graphed", "pass a function or a module")
    if not isinstance(target, torch.nn.Module):
        owner = getattr(target, "__self__", None)
        module = owner if isinstance(owner, torch.nn.Module) else None
        return _kind_of(options)(target, options, module)
    if hasattr(replacement(target), "info"):
        refuse(f"the {type(target).__qualname__} is graphed already", "call forward.reset() first")
    forward = _kind_of(options)(forward_of(target), options, target)
    replace(target, forward)
    if options["delay_weight_gradients"]:
        object.__setattr__(target, "backward_dw", forward.backward_dw)
    return target
