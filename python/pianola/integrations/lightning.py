"""A callback for Lightning's Trainer, by which `training_step` and its backward pass are replayed:

    from pianola.integrations.lightning import GraphedTraining

    trainer = Trainer(callbacks=[GraphedTraining()])

What the step logs by `self.log` and `self.log_dict` is handed out of the graph and logged after each replay.
"""

import contextvars
import functools
import sys
from typing import TYPE_CHECKING, Any, Callable, Optional

import torch

from .._graphed import GraphedFunction, graphed
from ._needs import log, needed, says_once

if TYPE_CHECKING:
    from .._options import GraphedOptions, Unpack

_OLD, _NEW = "pytorch_lightning", "lightning.pytorch"
_names = (_OLD, _NEW) if sys.modules.get(_OLD) and not sys.modules.get(_NEW) else (_NEW, _OLD)  # the one that the program uses
_lightning: Any = needed(*_names, install="lightning")
__all__ = ["GraphedTraining"]

# What the running step has logged: (name, value, options). A context variable, for it is set in the step: a global that changes there
# would keep the step eager.
_logged: "contextvars.ContextVar[Optional[list[Any]]]" = contextvars.ContextVar("logged", default=None)


def _why_eager(trainer: Any, module: Any) -> Optional[str]:
    """What this module does not hold, and nobody else would notice."""
    if not module.automatic_optimization:
        return "it optimizes manually; put @pianola.graphed on a function that it calls"
    if trainer.world_size > 1:
        return "several processes train, whose gradients are reduced outside of the graph"
    return None


class _GraphedStep:
    """The training_step of a module, graphed, and its `log`."""

    def __init__(self, module: Any, options: dict[str, Any]) -> None:
        self._module = module
        self._original = module.training_step
        self.graphed: GraphedFunction[..., Any] = graphed(self._run, **options)
        self._log = self._collect  # the same object for each call

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        """What is captured: what the step returns, and what it logs."""
        logged: list[Any] = []
        token = _logged.set(logged)
        try:
            return self._original(*args, **kwargs), logged
        finally:
            _logged.reset(token)

    def _collect(self, name: str, value: Any, *args: Any, **options: Any) -> None:
        """Stands in for `self.log` while the step runs."""
        logged = _logged.get()
        assert logged is not None
        if isinstance(value, torch.Tensor) and not options.get("enable_graph"):
            value = value.detach()
        logged.append((name, value, args, options))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        own = self._module.__dict__
        before = own.get("log")
        own["log"] = self._log
        try:
            result, logged = self.graphed(*args, **kwargs)
        finally:
            if before is None:
                del own["log"]
            else:
                own["log"] = before
        for name, value, more, options in logged:
            self._module.log(name, value, *more, **options)
        return result


class GraphedTraining(_lightning.Callback):  # type: ignore[misc]
    """Replays `training_step` and its backward pass. Optimizers, schedules, clipping, accumulation, validation and tests remain
    Lightning's. What cannot be a graph runs as before, and the logger "pianola" says why.

    Args:
        options: of `pianola.graphed`.
    """

    def __init__(self, **options: "Unpack[GraphedOptions]") -> None:
        self._options = dict(options)
        self._step: Optional[_GraphedStep] = None
        self._replaced: Optional[Callable[..., Any]] = None

    @property
    def graphed_step(self) -> "Optional[GraphedFunction[..., Any]]":
        """The step, for its `info()` and `reset()`; None before the first training, and where all of it is eager."""
        return None if self._step is None else self._step.graphed

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        name = f"{type(pl_module).__name__}.training_step"
        reason = _why_eager(trainer, pl_module)
        if reason is not None:
            log.warning("%s runs eagerly: %s", name, reason)
            return
        step = self._step = _GraphedStep(pl_module, {"on_fallback": says_once(name), **self._options})

        @functools.wraps(pl_module.training_step)  # Lightning looks at its arguments
        def training_step(*args: Any, **kwargs: Any) -> Any:
            return step(*args, **kwargs)

        pl_module.__dict__["training_step"] = self._replaced = training_step

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._put_back(pl_module)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._put_back(pl_module)

    def _put_back(self, module: Any) -> None:
        if self._replaced is not None and module.__dict__.get("training_step") is self._replaced:
            del module.__dict__["training_step"]
        self._replaced = None
