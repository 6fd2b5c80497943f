"""`pianola.FullIteration`: a whole training iteration as one graph."""

import logging
from typing import Any, Callable, Iterable, Optional, Sequence, Union

import torch

from ._arguments import as_bytes
from ._call import Call, name_of
from ._choices import check_compile, chosen
from ._errors import refuse
from ._flat_function import FlatFunction
from ._found_parts import FoundParts
from ._graph_pool import pool_to_capture_into
from ._handed_on import HandedOn
from ._host_states import States
from ._host_watch import HostWatch
from ._load import _C
from ._static_inputs import StaticInputs
from ._structure import Structure, of_arguments
from ._uncopied import Uncopied
from ._weakly import Weakly

_log = logging.getLogger("pianola")
_TRAINING, _VALIDATION = _C.Stage.training, _C.Stage.validation


class _Step:
    """The function of one stage."""

    draws = None  # those of the host are refused
    checks_reads = False  # as well

    def __init__(self, function: Callable[[Any], Any], capacity: int, warmup: int) -> None:
        self.original = function
        self.states = States(capacity=4 * capacity)
        self.handed_on = HandedOn()  # nothing: it is refused
        self.found = FoundParts()  # none: it checks no reads
        self.watch = HostWatch(function, warmup)

    def run_original(self, microbatches: Any) -> Any:
        return self.original(microbatches)

    def structure_of(self, key: int) -> Optional[Structure]:
        return self.states.structure_of(key)


class _FixedCall(Call):
    """A call with static inputs, which a graph reads where they are."""

    def __init__(self, step: _Step, inputs: StaticInputs) -> None:
        self.batch = inputs.microbatches()
        self.tensors = inputs.tensors()
        super().__init__(step, (self.batch,), {}, inputs._structure())
        self.state, self.reason = step.states.find(self.structure, inputs.key)
        self.key = self.state.number

    def to_capture(self) -> tuple[Any, FlatFunction]:
        flat = FlatFunction(self.while_capturing(), self.structure, name=name_of(self.graphed.original))
        batch, device = self.batch, self.tensors[0].device
        return lambda: flat.run(device, (batch,), {}), flat


class FullIteration(Uncopied):
    """A whole training iteration as one graph: forward and backward over all microbatches, clipping, scaler, optimizer.

        iteration = pianola.FullIteration(train_step, warmup=3)
        for batch in loader:
            loss = iteration(microbatches_of(batch))   # eager, eager, eager, captured, replayed ...

    The first `warmup` calls of a signature are eager iterations, for real; the next one is captured and replayed, and later
    ones are replayed. A signature is the number of microbatches, their structure, and shapes, strides and dtypes of their
    tensors; other values in them, and all that the step's Python reads (globals, closures, attributes, containers, modules,
    optimizers), belong to it as well. Keep what changes (learning rate, scale) in tensors on the device, as Pianola's and
    torch's capturable optimizers do; what changes from call to call is refused.

    Results are equal to eager's, bit for bit (with `compile` as near as info() says), and are tensors without history.

    Args:
        training: takes the microbatches, as they are given to the call, and returns losses and metrics: tensors, in any
            structure.
        validation: the same for calls with stage="validation".
        warmup: eager iterations of a signature before it is captured; at least 1.
        capacity: signatures of a stage that keep a graph; beyond that the one not called for longest loses its own.
        outputs: "alias": static tensors, which the next call of any stage overwrites. "clone": copies.
        eager_fallback: what cannot be captured goes on eagerly, and the reason is logged once ("pianola" logger, or
            `on_fallback`). Off: the call raises.
        on_fallback: called with the reason, once per signature, instead of the log.
        generators: torch.Generators, besides the default one, that the step draws from: RngTracker.generators().
        after_iteration: called with the stage after each iteration, eager or replayed: a schedule's step(), a check.
        memory_limit: bytes that the pool of an iteration's graph may take, as its last eager run shows it; 0: no limit. An iteration that
            would take more, or whose static inputs alone do, is no graph.
        plan_memory: as for pianola.Graph.capture; "auto" takes no lanes then.
        accept_capture_path: as for pianola.graphed: accept a capture whose operations differ from the iteration's.
        branches, parallel: as for pianola.Graph.capture: what is independent runs at once. "auto": on four lanes, where a
            trial finds that faster; 0: never.
        strict: check before each replay that everything that the step uses is still there.
        compile, closeness: as for pianola.graphed: the modules of a stage compiled by Inductor, in its graphs. Each stage chooses
            for itself; info().compiled says what, state_dict() keeps it.
        pool: a GraphPool to share.
        capture_error_mode: as for pianola.graph.
        config: a configuration, checked first; its warm-up is used.

    Raises:
        UsageError: an option is out of range.
        ConfigError: the configuration violates rules, or is not for full iterations.

    Raises, when called:
        CaptureError, UsageError: the step cannot be captured, and `eager_fallback` is off; nothing was computed.
    """

    _copied_instead = "copy or save the model and its optimizer (state_dict()), and make another one of them"

    def __init__(
        self,
        training: Callable[[Any], Any],
        validation: Optional[Callable[[Any], Any]] = None,
        *,
        warmup: int = 3,
        capacity: int = 8,
        outputs: Any = "alias",
        eager_fallback: bool = False,
        on_fallback: Optional[Callable[[str], Any]] = None,
        generators: Iterable[torch.Generator] = (),
        after_iteration: Optional[Callable[[str], Any]] = None,
        memory_limit: int = 0,
        plan_memory: bool = False,
        accept_capture_path: bool = False,
        branches: Union[int, str] = "auto",
        parallel: "Optional[_C.ParallelOptions]" = None,
        strict: bool = False,
        compile: Union[bool, str] = False,
        closeness: Optional[float] = None,
        pool: "Optional[_C.GraphPool]" = None,
        capture_error_mode: str = "thread_local",
        config: "Optional[_C.CudaGraphConfig]" = None,
    ) -> None:
        check_compile(compile, closeness)
        pool_to_capture_into(pool, "FullIteration")
        memory_limit = as_bytes(memory_limit, "memory_limit")
        if config is not None:
            warmup = _C.iteration_warmup(config)
        self._steps = {_TRAINING: _Step(training, capacity, warmup)}
        if validation is not None:
            self._steps[_VALIDATION] = _Step(validation, capacity, warmup)
        self._capacity = capacity
        self._on_fallback = on_fallback
        self._after_iteration = after_iteration
        self._cache = _C.IterationCache(
            _C.FullIterationOptions(
                warmup=warmup,
                capacity=capacity,
                output=chosen(_C.OutputPolicy, outputs, "outputs"),
                eager_fallback=eager_fallback,
                on_fallback=Weakly(self._report),
                generators=list(generators),
                memory_limit=memory_limit,
                plan_memory=plan_memory,
                accept_capture_path=accept_capture_path,
                branches=branches,
                parallel=parallel,
                strict=strict,
                pool=None if pool is None else (pool.device, pool.id),
                mode=capture_error_mode,
            )
        )
        self._capture_has_failed = False  # in the latest iteration: its exception is that of a capture, and nothing was computed
        self._choices: Any = None  # Choices
        if compile is not False:
            from ._compiled_iteration import Choices  # which asks for the compiler

            again = dict(
                warmup=warmup, capacity=capacity, outputs=outputs, eager_fallback=eager_fallback, generators=list(generators),
                after_iteration=after_iteration, memory_limit=memory_limit, plan_memory=plan_memory, accept_capture_path=accept_capture_path,
                branches=branches, parallel=parallel, strict=strict, pool=pool, capture_error_mode=capture_error_mode,
            )  # fmt: skip
            functions = {stage: step.original for stage, step in self._steps.items()}
            options = {"compile": compile, "closeness": closeness, "generators": again["generators"], "warmup": warmup, "iteration": again}
            self._choices = Choices(self, functions, options)

    def __call__(self, microbatches: Union[Sequence[Any], StaticInputs], stage: str = "training") -> Any:
        """Runs one iteration.

        Args:
            microbatches: one value per microbatch; or StaticInputs, whose current batch is read where it is. Where it has
                buckets, all of them are captured when the first one is due, the largest first, so that smaller ones need
                no memory of their own.
            stage: "training" or "validation".
        """
        key = chosen(_C.Stage, stage, "stage")
        if self._choices is not None and key in self._choices.of:
            return self._choices.run(key, microbatches)
        return self._run_plainly(key, microbatches)

    def _run_plainly(self, key: "_C.Stage", microbatches: Any) -> Any:
        """An iteration of a stage with its modules as they are."""
        step = self._step(key)
        if isinstance(microbatches, StaticInputs):
            return self._run_fixed(key, step, microbatches)
        leaves, structure = of_arguments((microbatches,), {})
        state, reason = step.states.find(structure)
        if reason is not None:
            self._cache.refuse(key, state.number, reason, [], *leaves)
        call = Call(step, (microbatches,), {}, structure, state)
        self._capture_has_failed = False
        try:
            result = _result(call, self._cache.run(key, state.number, call, [], *leaves))
        except Exception:
            self._capture_has_failed = call.has_captured and not call.has_run
            raise
        self._follow(key)
        return result

    def _run_fixed(self, stage: "_C.Stage", step: _Step, inputs: StaticInputs) -> Any:
        call = _FixedCall(step, inputs)
        if inputs.bucket and self._cache.is_due(stage, call.key, call.tensors):
            self._capture_buckets(stage, step, inputs)
        if call.reason is not None:
            self._cache.refuse(stage, call.key, call.reason, call.tensors)
        self._capture_has_failed = False
        try:
            result = _result(call, self._cache.run(stage, call.key, call, call.tensors))
        except Exception:
            self._capture_has_failed = call.has_captured and not call.has_run
            raise
        self._follow(stage)
        return result

    def _capture_buckets(self, stage: "_C.Stage", step: _Step, inputs: StaticInputs) -> None:
        buckets = len(inputs.bucket_uses())
        if buckets > self._capacity:
            refuse(f"there are {buckets} buckets, and room for {self._capacity} graphs", f"set capacity to {buckets} or more")

        def capture(length: int) -> None:
            call = _FixedCall(step, inputs)
            self._cache.capture(stage, call.key, call, call.tensors)

        inputs.for_each_bucket(capture)

    def _step(self, stage: "_C.Stage") -> _Step:
        if stage not in self._steps:
            refuse(f"there is no {stage.name} step", "give FullIteration a step for it when you make it")
        return self._steps[stage]

    def _report(self, reason: str) -> None:
        if self._on_fallback is None:
            _log.warning("%s runs eagerly: %s", name_of(self._steps[_TRAINING].original), reason)
        else:
            self._on_fallback(reason)

    def _follow(self, stage: "_C.Stage") -> None:
        if self._after_iteration is not None:
            self._after_iteration(stage.name)

    def reset(self, stage: Optional[str] = None) -> None:
        """Forgets a stage's signatures (None: all) and drops their graphs; the next calls warm up again."""
        stages = (_TRAINING, _VALIDATION) if stage is None else (chosen(_C.Stage, stage, "stage"),)
        for one in stages:
            self._cache.reset(one)
        if self._choices is not None:
            self._choices.reset(stages)

    def _drop_plain_graphs(self, stage: "_C.Stage") -> None:
        """Where compiled ones are used instead."""
        self._cache.reset(stage)

    def state_dict(self) -> dict[str, Any]:
        """What `compile` chose for each stage, for a checkpoint: a run that goes on from it computes with the same kernels."""
        return {"compiled": {} if self._choices is None else self._choices.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what was chosen when the state was saved, from the next iterations on: nothing is compared and timed again."""
        if not isinstance(state, dict) or not isinstance(state.get("compiled"), dict):
            refuse("this is no state of a FullIteration", "pass what state_dict() returned")
        if self._choices is not None:
            self._choices.load_state_dict(state["compiled"])
        elif any(state["compiled"].values()):
            refuse("the state is of a FullIteration that compiles, and this one does not", "make it with the same `compile`")

    def info(self) -> "_C.FullIterationInfo":
        """What is known and kept, per stage and signature."""
        info = self._plain_info()
        if self._choices is not None:
            self._choices.add_to(info)
        return info

    def _plain_info(self) -> "_C.FullIterationInfo":
        """Of the graphs with modules as they are."""
        info = self._cache.info()
        info.unfollowed = [what for step in self._steps.values() for what in step.states.unfollowed()]
        return info


def _result(call: Call, replayed: Optional[tuple[FlatFunction, Any, bool]]) -> Any:
    if replayed is None:
        return call.result
    if call.state is not None:
        call.state.note_replay()
    flat, leaves, is_static = replayed
    if leaves is None:
        leaves = flat.unchanging
    elif is_static:
        flat.unchanging = leaves
    return flat.rebuild(leaves)  # containers are the caller's, to change as he likes
