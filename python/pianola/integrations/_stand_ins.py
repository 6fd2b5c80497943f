"""Classes that stand in for those of others in a step. Their code is followed as the others' would be."""

import types
from typing import Any

from ._needs import needed

_transformers: Any = needed("transformers", install="transformers accelerate")


class CountingState(_transformers.TrainerState):  # type: ignore[misc]
    """A TrainerState with its counters as properties. The code of a step mentions them, and reads them under rare settings alone. An
    attribute that changes with each step would keep each step eager; a property counts in a step that really asks it."""

    _counters: types.SimpleNamespace

    @property
    def global_step(self) -> Any:
        return self._counters.global_step

    @global_step.setter
    def global_step(self, value: Any) -> None:
        self._counters.global_step = value

    @property
    def epoch(self) -> Any:
        return self._counters.epoch

    @epoch.setter
    def epoch(self, value: Any) -> None:
        self._counters.epoch = value


def let_count(state: Any) -> None:
    """Makes a TrainerState, and none of a subclass, a CountingState."""
    if type(state) is _transformers.TrainerState:
        own = state.__dict__
        own["_counters"] = types.SimpleNamespace(global_step=own.pop("global_step"), epoch=own.pop("epoch"))
        state.__class__ = CountingState
