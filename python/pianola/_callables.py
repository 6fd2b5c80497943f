"""`pianola.make_graphed_callables`: torch.cuda's, with what Transformer Engine added."""

from typing import TYPE_CHECKING, Any, Callable, Iterable, Optional, Sequence, TypeVar, Union, overload

import torch

from . import _pipeline
from ._choices import check_compile, chosen, grad_policy
from ._device import default_device
from ._errors import refuse
from ._flat_function import FlatFunction
from ._graph_pool import pool_id
from ._graphed_forward import GraphedForward
from ._load import _C
from ._named_gradients import see_names
from ._pass_hooks import Given, capture_hooks, replay_hooks as hooks_of_replays
from ._patching import replace, replacement
from ._structure import of_arguments
from ._weakly import Weakly, WhileCapturing, forward_of

if TYPE_CHECKING:
    from ._options import CallableOptions, Unpack

Sample = tuple[tuple, dict[str, Any]]  # args, kwargs
Module = TypeVar("Module", bound=torch.nn.Module)


@overload
def make_graphed_callables(  # type: ignore[overload-overlap]
    callables: Module,
    sample_args: Sequence[Any],
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: Any = None,
    capture_error_mode: str = "thread_local",
    **options: "Unpack[CallableOptions]",
) -> Module: ...
@overload
def make_graphed_callables(
    callables: Union[tuple[Callable[..., Any], ...], list[Any]],
    sample_args: Sequence[Sequence[Any]],
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: Any = None,
    capture_error_mode: str = "thread_local",
    **options: "Unpack[CallableOptions]",
) -> tuple[Any, ...]: ...
@overload
def make_graphed_callables(
    callables: Callable[..., Any],
    sample_args: Sequence[Any],
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: Any = None,
    capture_error_mode: str = "thread_local",
    **options: "Unpack[CallableOptions]",
) -> GraphedForward: ...
def make_graphed_callables(
    callables: Any,
    sample_args: Any,
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: Any = None,
    capture_error_mode: str = "thread_local",
    *,
    sample_kwargs: Any = None,
    grad: Any = None,
    outputs: Any = "alias",
    slots: int = 1,
    on_mismatch: str = "refuse",
    on_full: str = "overtake",
    schedule: Optional["_C.Schedule"] = None,
    through_autograd: Iterable[torch.Tensor] = (),
    delay_weight_gradients: bool = False,
    generators: Iterable[torch.Generator] = (),
    branches: Union[int, str] = "auto",
    parallel: "Optional[_C.ParallelOptions]" = None,
    accept_capture_path: bool = False,
    compile: Union[bool, str] = False,
    closeness: Optional[float] = None,
    retain_graph_in_backward: bool = False,
    clone_param_grads_on_return: Optional[bool] = None,
    pre_warmup_hook: Optional[Callable[[], Any]] = None,
    post_warmup_hook: Optional[Callable[[], Any]] = None,
    capture_time_hooks: Given = None,
    replay_hooks: Given = None,
    _order: Optional[Sequence[float]] = None,
    _num_layers_per_chunk: Union[int, Sequence[int], None] = None,
    _reuse_graph_input_output_buffers: bool = False,
) -> Any:
    """Captures the forward and backward passes of modules and functions; each then runs with one launch.

    As torch.cuda.make_graphed_callables: modules are patched and returned, functions come back as new callables, a tuple
    of callables gives a tuple. In training the cost of a call does not depend on the number of parameters.

    Args:
        callables: a module or function, or a tuple of them, in the order in which they run.
        sample_args: the arguments of one call, as a tuple; for a tuple of callables a tuple of such tuples. Nested lists,
            tuples, dicts, named tuples and dataclasses of tensors; what is no tensor is frozen and guarded by value.
        num_warmup_iters: eager runs before capture; they leave no trace.
        allow_unused_input: let a sample input that requires grad get none.
        pool: memory to share, as for pianola.graph.
        capture_error_mode: "thread_local", "global" or "relaxed".
        sample_kwargs: keyword arguments of the samples: a dict, or one per callable.
        grad: GradPolicy or its name: how gradients of parameters are handed out. Default "accumulate".
        outputs: "alias": the next call overwrites what a call returned. "clone": copies.
        slots: calls that may be between forward and backward at once.
        on_mismatch: "refuse" raises GuardError for a call that differs from the sample, "eager" runs the original.
        on_full: no slot is free: "overtake" takes the oldest call's, whose backward is refused from then on; "refuse" raises
            UsageError.
        schedule: the order of forwards and backwards of a pipeline stage; `_order` in a Schedule.
        through_autograd: parameters whose gradients autograd sees under "accumulate", too.
        delay_weight_gradients: a backward pass leaves the gradients of weights (of linear and convolution layers) for later, and
            `backward_dw()` of what comes back computes them: `p.grad` is then what one backward would have made it. Once for each
            backward. With an order, its entries -c-0.5 say so.
        generators: torch.Generators, besides the default one, that the callables draw from.
        branches, parallel: as for pianola.Graph.capture: what is independent in a pass runs at once. "auto": on four lanes,
            where a trial finds that faster; 0: never.
        accept_capture_path: accept a capture whose operations or numbers differ from those of the last warm-up run, because a
            library asks whether it is captured. Off: a CaptureError with both lines.
        compile: True: each module is compiled by Inductor, and its kernels are what is captured. "auto": where a forward and backward
            pass is at least 2 % faster so. What cannot be compiled stays plain. Compiled kernels round differently: `compiled` of what
            comes back (of `module.forward`) says by how much, and what was chosen.
        closeness: the most that a compiled module may differ from eager, as a share of the largest value, or it stays plain; None:
            any.
        retain_graph_in_backward: let backward(retain_graph=True) be followed by another one.
        clone_param_grads_on_return: Transformer Engine's name for grad="clone" (True) and grad="alias" (False).
        pre_warmup_hook, post_warmup_hook: called once, before and after all warm-up runs; once more, where what was compiled cannot be
            captured and is captured plainly.
        capture_time_hooks: per callable None or a dict of hooks, as in Transformer Engine: run around each warm-up and
            capture pass, and not recorded.
        replay_hooks: the same, run around each replay: to gather sharded parameters into their memory, say (Megatron-LM's manual
            hooks). {"forward_pre_hooks": {0: hook}, ...}; a hook gets the module. Those of the backward run around `backward_dw()`, too.
            What runs eagerly runs its own.
        _order, _num_layers_per_chunk: Transformer Engine's pipeline order: c, -c, and -c-0.5 for delayed gradients of weights. Then sample_args has one entry per layer and
            microbatch, and as many functions come back, in the same order. Without the second, the callables are divided
            evenly among the chunks.
        _reuse_graph_input_output_buffers: accepted; with an order, buffers are shared wherever the order allows it.

    Raises:
        UsageError, ConfigError, ScheduleError: arguments that do not fit. CaptureError: a callable cannot be captured.
        After any of them everything is as before.
    """
    single = not isinstance(callables, (tuple, list))
    targets = [callables] if single else list(callables)
    order = _pipeline.order_of(
        schedule, _order, _num_layers_per_chunk, _reuse_graph_input_output_buffers, callables=len(targets)
    )
    samples = _samples(targets, sample_args, sample_kwargs, single, order if _order is not None else None)
    _check_modules(targets)
    check_compile(compile, closeness)
    if compile and (delay_weight_gradients or _pipeline.delays_weights(order)):
        refuse(
            "compiled modules compute all gradients in one kernel after the other: none can be left for later",
            "leave out compile, or delay_weight_gradients",
            kind="ConfigError",
        )
    flats, tensors = _flatten(targets, samples)
    first = next((tensor for sample in tensors for tensor in sample), None)
    hooks = WhileCapturing()
    of_replays = hooks_of_replays(replay_hooks, targets)
    settings: dict[str, Any] = dict(
        device=first.device if first is not None else default_device(),
        warmup=num_warmup_iters,
        grad=grad_policy(grad, clone_param_grads_on_return),
        output=chosen(_C.OutputPolicy, outputs, "outputs"),
        slots=slots,
        retain_graph=retain_graph_in_backward,
        allow_unused_input=allow_unused_input,
        accept_capture_path=accept_capture_path,
        on_mismatch=_C.OnMismatch.refuse,
        on_other_mode=_C.OnOtherMode.refuse,
        on_full=_C.OnFull.refuse if order is not None else chosen(_C.OnFull, on_full, "on_full"),
        through_autograd=list(through_autograd),
        delay_weight_gradients=delay_weight_gradients,
        schedule=order,
        pool=pool_id(pool),
        generators=list(generators),
        branches=branches,
        parallel=parallel,
        mode=capture_error_mode,
        pre_warmup=hooks.hold(pre_warmup_hook),
        post_warmup=hooks.hold(post_warmup_hook),
        capture_hooks=capture_hooks(capture_time_hooks, targets, hooks),
        replay_hooks=[one.for_graphs() for one in of_replays],
    )
    chosen(_C.OnMismatch, on_mismatch, "on_mismatch")
    modules = [target if isinstance(target, torch.nn.Module) else None for target in targets]
    see_names()

    def capture() -> list["_C.GraphedCallable"]:
        return _C.make_graphed_callables([Weakly(flat.__call__) for flat in flats], modules, tensors, _C.CallableOptions(**settings))

    try:
        if compile:
            from ._compiled_callables import CompiledCallables  # not without need: it imports the compiler

            compiling = CompiledCallables(compile, closeness, settings)
            captured = compiling.capture(capture, targets, samples, flats)
            told = compiling.told
        else:
            captured, told = capture(), [""] * len(flats)
    finally:
        hooks.release()
    forwards = [
        GraphedForward(one, flat, flat.function, module, on_mismatch, compiled)
        for one, flat, module, compiled in zip(captured, flats, modules, told)
    ]
    for forward, replays in zip(forwards, of_replays):
        forward.replay_hooks = replays
    if _order is not None:
        assert order is not None
        return _pipeline.per_microbatch(targets, forwards, order)
    results = [_patch(target, forward) for target, forward in zip(targets, forwards)]
    return results[0] if single else tuple(results)


def _samples(targets: list, sample_args: Any, sample_kwargs: Any, single: bool, order: Any) -> list[Sample]:
    args = [sample_args] if single else list(sample_args)
    kwargs = sample_kwargs
    if kwargs is None or isinstance(kwargs, dict):
        kwargs = [kwargs or {}] * len(args)
    for sample in args:
        if not isinstance(sample, (tuple, list)):
            refuse(
                f"sample_args must be a tuple of the arguments of one call, got a {type(sample).__qualname__}",
                "write sample_args=(x,), or, for several callables, ((x,), (y,))",
            )
    if order is not None:
        return _pipeline.samples_of_layers(list(zip(map(tuple, args), kwargs)), order)
    if len(args) != len(targets) or len(kwargs) != len(targets):
        refuse(
            f"got {len(args)} sample_args and {len(kwargs)} sample_kwargs for {len(targets)} callables",
            "give one tuple of arguments per callable",
        )
    return list(zip(map(tuple, args), kwargs))


def _check_modules(targets: list) -> None:
    for target in targets:
        if not callable(target):
            refuse(f"a {type(target).__qualname__} cannot be graphed", "pass modules or functions")
        if not isinstance(target, torch.nn.Module):
            continue
        if isinstance(replacement(target), GraphedForward):
            refuse(f"the {type(target).__qualname__} is graphed already", "call its reset() first")
        if any(isinstance(one, torch.nn.parallel.DistributedDataParallel) for one in target.modules()):
            refuse(
                "DistributedDataParallel cannot be graphed: replays would not run the code that pairs the ranks' communication",
                "graph the module inside of it: DistributedDataParallel first, then make_graphed_callables(ddp.module, ...); "
                'or graph the module with grad="clone" first, and wrap it then',
                where=type(target).__qualname__,
                rule="PG1106",
            )
        hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        if any(getattr(target, name, None) for name in hooks):
            refuse(
                "Modules must not have hooks registered at the time they are passed. However, registering hooks on "
                "modules after passing them through make_graphed_callables is allowed.",
                "remove the hooks, and register them again afterwards; hooks of submodules are captured",
                where=type(target).__qualname__,
                rule="PG1004",
            )


def _flatten(targets: list, samples: list[Sample]) -> tuple[list[FlatFunction], list[list[torch.Tensor]]]:
    flats, tensors = [], []
    for i, (target, (args, kwargs)) in enumerate(zip(targets, samples)):
        leaves, structure = of_arguments(args, kwargs)
        # Not the module itself: what hooks it gets later, its __call__ runs around the replay.
        function = forward_of(target) if isinstance(target, torch.nn.Module) else target
        flats.append(FlatFunction(function, structure, name=f"callable {i + 1}"))
        tensors.append(leaves)
    return flats, tensors


def _patch(target: Any, forward: GraphedForward) -> Any:
    if not isinstance(target, torch.nn.Module):
        return forward
    replace(target, forward)
    if not hasattr(target, "reset"):
        object.__setattr__(target, "reset", forward.reset)
    if forward.info().delayed or not hasattr(target, "backward_dw"):  # before one of its own, which would find nothing
        object.__setattr__(target, "backward_dw", forward.backward_dw)
    return target
