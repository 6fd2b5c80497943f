"""transformers' `Trainer`, whose training steps are replayed:

    from pianola.integrations.transformers import GraphedTrainer as Trainer

A subclass of yours becomes one by `class MyTrainer(GraphedTrainerMixin, Trainer)`.
"""

from typing import TYPE_CHECKING, Any, Optional

import torch

from .._graphed import GraphedFunction, graphed
from ._attention_masks import Answers, answering, answers_for, questions_answered
from ._needs import needed, says_once
from ._stand_ins import let_count

if TYPE_CHECKING:
    from .._options import GraphedOptions

_transformers: Any = needed("transformers", install="transformers accelerate")
__all__ = ["GraphedTrainer", "GraphedTrainerMixin"]


class GraphedTrainerMixin:
    """Replays the forward pass, the loss and the backward pass of a Trainer's steps. Optimizer, clipping, schedules, logs,
    evaluation and checkpoints remain the Trainer's. What cannot be a graph runs as before, and the logger "pianola" says why."""

    graphed_options: "GraphedOptions" = {}  # of `pianola.graphed`
    _graphed_step: "Optional[GraphedFunction[..., torch.Tensor]]" = None

    @property
    def graphed_step(self: Any) -> "GraphedFunction[..., torch.Tensor]":
        """The graphed step, for its `info()` and `reset()`."""
        if self._graphed_step is None:
            options = {"on_fallback": says_once(f"{type(self).__name__}.training_step"), **self.graphed_options}
            self._graphed_step = graphed(self._training_step_with_answers, **options)
        return self._graphed_step

    def training_step(self: Any, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        if self.args.n_gpu > 1:  # DataParallel, whose replicas are threads
            return super().training_step(model, inputs, num_items_in_batch)  # type: ignore[misc]
        model.train()  # the step does so, too: where an evaluation came between, it would be a change that the step makes
        let_count(self.state)
        with questions_answered():
            return self.graphed_step(model, inputs, num_items_in_batch, answers_for(getattr(self.model, "config", None), inputs))

    def _training_step_with_answers(self, model: Any, inputs: Any, num_items_in_batch: Any, answers: Answers) -> torch.Tensor:
        with answering(inputs, answers):
            return super().training_step(model, inputs, num_items_in_batch)  # type: ignore[misc]

    def _inner_training_loop(self: Any, *args: Any, **kwargs: Any) -> Any:
        """One run of training; the graphs of one before it may be of another model, or of a batch that was too large."""
        self._graphed_step = None
        return super()._inner_training_loop(*args, **kwargs)  # type: ignore[misc]


class GraphedTrainer(GraphedTrainerMixin, _transformers.Trainer):  # type: ignore[misc]
    """transformers' Trainer, whose training steps are replayed."""
