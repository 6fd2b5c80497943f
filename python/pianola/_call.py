"""One call of a function that is graphed by its signature, as the C++ caches ask for it."""

import weakref
from typing import Any, Callable, Optional

import torch

from ._device import default_device
from ._errors import refuse
from ._flat_function import FlatFunction
from ._host_reads import HostReads
from ._host_states import State
from ._structure import Structure, names_of_arguments, tensors_of
from ._weakly import Weakly


_FIX = "pass what the step needs of it as an argument, or keep it in a tensor"


class Call:
    """One call, as the cache asks for it."""

    def __init__(
        self, graphed: Any, args: tuple[Any, ...], kwargs: dict[str, Any], structure: Structure, state: Optional[State] = None
    ) -> None:
        self.graphed = graphed
        self.args = args
        self.kwargs = kwargs
        self.structure = structure
        self.state = state
        self.result: Any = None
        self.interrupts: list[BaseException] = []  # KeyboardInterrupt and the like: no reason to go on eagerly

    def run_eagerly(self) -> None:
        if self.interrupts:
            raise self.interrupts[0]
        self.result = self.graphed.original(*self.args, **self.kwargs)

    def run_observed(self) -> tuple[str, str, list[torch.Tensor]]:
        """The same, watched: see HostEffects in C++."""
        if self.interrupts:
            raise self.interrupts[0]
        tensors = tensors_of((self.args, self.kwargs))
        device = tensors[0].device if tensors else default_device()
        effects, reads = self.graphed.watch.run(self.run_eagerly, device.type, self.read_arguments())
        self.note_reads(reads)
        return effects

    def note_lasting_obstacle(self) -> None:
        """The function stays eager. What it writes it may read, so that each call would be in a state of its own."""
        if self.state is not None:
            self.graphed.states.keep(self.state)

    def note_reads(self, reads: HostReads) -> None:
        if self.state is not None:
            self.state.learn(reads)

    def read_arguments(self) -> tuple[tuple[str, Any], ...]:
        """Arguments that are looked into: (name, value)."""
        if not self.structure.frozen:
            return ()
        names = names_of_arguments(self.args, self.kwargs)
        return tuple((names[i] if i < len(names) else f"argument {i}", value) for i, value in self.structure.frozen)

    def changed_since(self, key: int) -> str:
        """The argument that is no tensor and another one than in the call of this key; "" where none is."""
        known = self.graphed.structure_of(key)
        if known is None or known.same(self.structure):
            return ""
        return known.difference(self.structure, names_of_arguments(self.args, self.kwargs)).partition(":")[0]

    def eager_results(self) -> list[torch.Tensor]:
        return tensors_of(self.result)

    def to_capture(self) -> tuple[Any, FlatFunction]:
        flat = FlatFunction(self.while_capturing(), self.structure, name=name_of(self.graphed.original))
        return flat, flat

    def while_capturing(self) -> Callable[..., Any]:
        """The function, as a graph may hold it."""
        if self.state is not None:
            self.graphed.states.release(self.state)  # kept for tensors of other shapes, perhaps
        run, interrupts = Weakly(self.graphed.run_original), self.interrupts  # all that the graph may hold of this call
        this_call = weakref.ref(self)

        def function(*args: Any, **kwargs: Any) -> Any:
            try:
                call = this_call()
                if call is None or call.state is None:
                    return run(*args, **kwargs)
                with HostReads(call.graphed.original, call.read_arguments()) as reads:
                    result = run(*args, **kwargs)
                call.note_reads(reads)  # what it read now is what the graph freezes
                if call.state.refusal:
                    refuse(call.state.refusal, _FIX)
                return result
            except Exception:
                raise
            except BaseException as interrupt:
                interrupts.append(interrupt)
                raise

        return function


def name_of(function: Any) -> str:
    return getattr(function, "__qualname__", None) or type(function).__qualname__
