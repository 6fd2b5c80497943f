"""`graphed` for steps that use an `Accelerator` of Hugging Face's accelerate:

    from pianola.integrations.accelerate import graphed

    @graphed(accelerator)
    def train_step(batch):
        with accelerator.accumulate(model):
            ...

What `accumulate()` counts on the host, and how often schedulers step by that, is decided before each call; the rest is
`pianola.graphed`.
"""

import contextlib
import contextvars
import functools
from typing import TYPE_CHECKING, Any, Callable, Iterator, Optional

from .._errors import refuse
from .._graphed import GraphedFunction
from .._graphed import graphed as _graphed
from ._needs import needed, says_once

if TYPE_CHECKING:
    from .._options import GraphedOptions, Unpack

_accelerate: Any = needed("accelerate", install="accelerate")
__all__ = ["graphed"]

# What the running step has called: "accumulate", or a scheduler by its number. A context variable, for it is set in the step: a global
# that changes there would keep the step eager.
_called: "contextvars.ContextVar[Optional[list[Any]]]" = contextvars.ContextVar("called", default=None)


def _note(what: Any) -> None:
    called = _called.get()
    assert called is not None
    called.append(what)


@contextlib.contextmanager
def _standing_in(methods: list[tuple[Any, str, Callable[..., Any]]]) -> Iterator[None]:
    """For methods of objects: (object, name, function)."""
    before = [vars(one).get(name) for one, name, _ in methods]
    for one, name, function in methods:
        vars(one)[name] = function
    try:
        yield
    finally:
        for (one, name, _), own in zip(methods, before):
            if own is None:
                del vars(one)[name]
            else:
                vars(one)[name] = own


class _Scheduler:
    """Stands in for the step() of an AcceleratedScheduler, whose code mentions counters that change with each call."""

    def __init__(self, scheduler: Any, number: int) -> None:
        self.scheduler = scheduler
        self.number = number

    def times(self) -> int:
        """How often it would step now."""
        own = self.scheduler
        if not own.step_with_optimizer:
            return 1
        if not own.gradient_state.sync_gradients:
            return 0
        times = 1 if own.split_batches else int(_accelerate.state.AcceleratorState().num_processes)
        if own.split_batches or not hasattr(own.scheduler, "total_steps"):
            return times
        return max(0, min(times, own.scheduler.total_steps - own.scheduler._step_count + 1))

    def step(self, *args: Any, **kwargs: Any) -> None:
        _note(self.number)
        times = _times.get()
        for _ in range(times[self.number]):
            self.scheduler.scheduler.step(*args, **kwargs)

    def count_skipped(self) -> None:
        own = self.scheduler
        if own.step_with_optimizer and not own.gradient_state.sync_gradients and own.gradient_state.adjust_scheduler:
            own.scheduler._step_count += 1


# How often each scheduler steps in the running call.
_times: "contextvars.ContextVar[tuple[int, ...]]" = contextvars.ContextVar("times", default=())


class _Step:
    """A step whose `accumulate()` has counted before it begins."""

    def __init__(self, function: Callable[..., Any], accelerator: Any, options: dict[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._accelerator = accelerator
        self._count = accelerator._do_sync
        self._accumulates: Optional[bool] = None  # not known before the first call
        self._schedulers: list[_Scheduler] = []
        self._stand_ins: list[tuple[Any, str, Callable[..., Any]]] = []  # the same ones in each call
        name = getattr(function, "__qualname__", type(function).__qualname__)
        say = says_once(name)
        self._say = functools.cache(say)  # once
        self.graphed: GraphedFunction[..., Any] = _graphed(self._run, **{"on_fallback": say, **options})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._accelerator.scaler is not None:
            self._say("gradients are scaled, and accelerate's optimizers note on the host whether they have stepped")
            return self._function(*args, **kwargs)
        if self._accumulates is None:
            return self._first_call(args, kwargs)
        if self._accumulates:
            self._count()
        times = tuple(one.times() for one in self._schedulers)
        with _standing_in(self._stand_ins):
            result, called = self.graphed(times, args, kwargs)
        entries = called.count("accumulate")
        if entries != int(self._accumulates):
            refuse(
                f"the step entered accelerator.accumulate() {entries} times, and {int(self._accumulates)} times in its first call",
                "enter it once in each call, or in none: around all that the step does",
            )
        for one in self._schedulers:
            if one.number in called:
                one.count_skipped()
        return result

    def _first_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An eager one, which shows whether the step accumulates."""
        entries = 0

        def count() -> None:
            nonlocal entries
            entries += 1
            self._count()

        with _standing_in([(self._accelerator, "_do_sync", count)]):
            result = self._function(*args, **kwargs)
        if entries > 1:
            refuse("the step enters accelerator.accumulate() more than once", "graph a function that holds one microbatch")
        self._accumulates = entries == 1
        self._schedulers = [_Scheduler(one, number) for number, one in enumerate(self._accelerator._schedulers)]
        self._stand_ins = [(self._accelerator, "_do_sync", functools.partial(_note, "accumulate"))]
        self._stand_ins += [(one.scheduler, "step", one.step) for one in self._schedulers]
        return result

    def _run(self, times: tuple[int, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[Any]]:
        called: list[Any] = []
        tokens = _called.set(called), _times.set(times)
        try:
            return self._function(*args, **kwargs), called
        finally:
            _called.reset(tokens[0])
            _times.reset(tokens[1])

    def info(self) -> Any:
        """Of the graphed function."""
        return self.graphed.info()

    def reset(self) -> None:
        """Forgets all signatures, as that of a graphed function does."""
        self.graphed.reset()


def graphed(accelerator: Any, **options: "Unpack[GraphedOptions]") -> Callable[[Callable[..., Any]], _Step]:
    """Makes a step capture its own calls, as `pianola.graphed` does.

    Args:
        accelerator: the Accelerator that the step uses; what it needs is prepared before the first call.
        options: of `pianola.graphed`.
    """
    if not isinstance(accelerator, _accelerate.Accelerator):
        refuse(f"graphed needs the Accelerator, got a {type(accelerator).__qualname__}", "write @graphed(accelerator)")
    return functools.partial(_Step, accelerator=accelerator, options=dict(options))
