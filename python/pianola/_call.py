"""One call of a function that is graphed by its signature, as the C++ caches ask for it."""

import weakref
from contextlib import nullcontext
from functools import partial
from typing import Any, Callable, Optional, Sequence

import torch

from ._async_results import waited_for
from ._device import default_device
from ._drawn_tensors import plain_tensors
from ._draws import Recording
from ._errors import UsageError, refuse
from ._flat_function import FlatFunction
from ._host_reads import HostReads
from ._host_states import State
from ._host_watch import Effects, check_returned, plain_in
from ._kept_tensors import with_kept
from ._late_reads import Answers, Notes
from ._number_slots import Given, bind
from ._numbers import Expression, Trail, indexing, is_followed, making, plain
from ._structure import Structure, names_of_arguments, of_result, opened, shapes_of, tensors_of, with_leaves
from ._temporary_arguments import TakenApart
from ._weakly import Weakly


_FIX = "pass what the step needs of it as an argument, or keep it in a tensor"


class Call:
    """One call, as the cache asks for it."""

    def __init__(
        self,
        graphed: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        structure: Structure,
        state: Optional[State] = None,
        taken_apart: Optional[TakenApart] = None,
    ) -> None:
        self.graphed = graphed
        self.args = args
        self.kwargs = kwargs
        self._taken_apart = taken_apart
        self.arguments = (args, kwargs) if taken_apart is None else taken_apart.arguments  # that the structure is of
        self.structure = structure
        self.state = state
        numbers = None if state is None else state.numbers
        self.followed = () if numbers is None else numbers.leaves  # numbers among the arguments, as indexes of Structure.frozen
        self.values = () if numbers is None else numbers.values(structure)  # theirs
        self._trail: Optional[Trail] = None  # of the capture
        self.result: Any = None
        self.opened: Any = None  # the same, with its own objects taken apart
        self.has_run = False  # eagerly
        self.has_captured = False  # or has tried to
        self._reads_meet_numbers = False
        self.interrupts: list[BaseException] = []  # KeyboardInterrupt and the like: no reason to go on eagerly

    def run_eagerly(self) -> Any:
        if self.interrupts:
            raise self.interrupts[0]
        self.has_run = True
        self.graphed.handed_on.leave()
        self.result = self.graphed.run_original(*self.args, **self.kwargs)
        return self.result

    def run_observed(self) -> Effects:
        """The same, watched: see HostEffects in C++."""
        if self.interrupts:
            raise self.interrupts[0]
        self.has_run = True
        device = self.device()
        trail = Trail()
        if self._taken_apart is not None:
            self._taken_apart.look()
        try:
            with self.graphed.found, Recording(device) as draws, Notes(device, self.graphed.checks_reads) as notes:
                effects, reads = self.graphed.watch.run(
                    partial(self._run_watched, trail), device, self.read_arguments(), self.state is not None and self.state.is_new,
                    None if self.state is None else self.state.looks,
                )
        finally:
            trail.is_over = True
        self.result = plain_tensors(self.result)
        if self._are_followed(draws):  # later calls are those of another function
            self.result = with_leaves(self.result, is_followed, plain)
            return Effects("", "", [], is_no_example=True)
        if self._taken_apart is not None and self._taken_apart.were_written():
            self.graphed.temporary.close()
        self.note_reads(reads)
        if self.state is None:
            return effects
        self.state.returned = plain_in(self.result)
        seen = notes.seen(self.result)
        if self._follows_numbers():
            self.state.learn_numbers(trail, self.values)
            self.result = with_leaves(self.result, is_followed, plain)
        self.opened = opened(self.result, reads.own)
        if not effects.lasting:  # not first in the capture, where other ranks may have taken part by then
            effects = effects._replace(lasting=self._why_not_returned())
        if notes.has_overflowed():
            return effects._replace(only_returns_late_reads=seen is not None, is_no_example=True)
        self.state.note_late(self.shapes(), seen)
        return effects._replace(only_returns_late_reads=seen is not None)

    def _why_not_returned(self) -> str:
        """What it returns that replays cannot; "" where there is nothing."""
        try:
            of_result(self.opened)
        except UsageError as error:
            return str(error)
        return ""

    def _are_followed(self, draws: Recording) -> bool:
        if self.state is None or self.graphed.draws is None:
            return False
        return bool(self.graphed.draws.follow(draws, self.args, self.kwargs))

    def _run_watched(self, trail: Trail) -> Any:
        follows = self._follows_numbers()
        args, kwargs = self._with_numbers(self.args, self.kwargs, trail.watched(self.values) if follows else ())
        with making if follows else nullcontext():
            self.result = waited_for(self.graphed.run_original(*args, **kwargs))
        self.graphed.handed_on.finish(is_capture=False)
        return self.result

    def _with_numbers(self, args: tuple[Any, ...], kwargs: dict[str, Any], numbers: Sequence[Any]) -> tuple[tuple, dict[str, Any]]:
        if not numbers:
            return args, kwargs
        assert self.state is not None and self.state.numbers is not None
        return self.state.numbers.put(args, kwargs, numbers)

    def _follows_numbers(self) -> bool:
        return bool(self.values) and self.state is not None and not self.state.captures_plainly

    def known_numbers(self) -> tuple[Any, ...]:
        return self.values

    def bind_numbers(self, arguments: list[list[Any]], given: list[tuple], change: str) -> list[tuple[int, int, int]]:
        """See callable::Call in C++."""
        if self._trail is None or self.state is None:  # it was captured with these numbers
            return []
        slots = bind(self._trail, self.state.table, arguments, [Given(*one) for one in given], change)
        self.state.freeze_numbers(self._trail, len(self.values))
        return slots

    def tell_numbers_apart(self, why: str, in_capture: bool) -> bool:
        """Calls of this key did not do the same, or could not be captured: the reason may be that their numbers differ."""
        state = self.state
        if not self.values or state is None or state.captures_plainly:
            return False
        if in_capture and self._reads_meet_numbers:  # a graph for each of them would be as many as calls
            return False
        if in_capture:  # perhaps for what stood for the numbers: the next one is given themselves
            state.captures_plainly = why
            return True
        return state.saw_numbers_change and bool(self.graphed.states.tell_apart(state, why))

    def device(self) -> str:
        """The type of device that it computes on."""
        tensors = tensors_of(self.arguments)
        if not tensors:
            return default_device().type
        return next((one.device.type for one in tensors if one.device.type != "cpu"), "cpu")

    def shapes(self) -> tuple:
        return shapes_of(self.arguments)

    def note_lasting_obstacle(self) -> None:
        """The function stays eager. What it writes it may read, so that each call would be in a state of its own."""
        if self.state is not None:
            self.graphed.states.keep(self.state)

    def note_inputs_elsewhere(self) -> bool:
        """Inputs are on the CPU, and the function computes on another device. Whether that is not known to be so for good."""
        return bool(self.graphed.expect_arrivals(self.args, self.kwargs))

    def note_reads(self, reads: HostReads) -> None:
        if self.state is not None:
            self.state.learn(reads)

    def read_arguments(self) -> tuple[tuple[str, Any], ...]:
        """Arguments that are looked into: (name, value)."""
        if not self.structure.frozen:
            return ()
        names = names_of_arguments(*self.arguments)
        return tuple((names[i] if i < len(names) else f"argument {i}", value) for i, value in self.structure.frozen)

    def changed_since(self, key: int) -> str:
        """The argument that is no tensor and another one than in the call of this key; "" where none is."""
        known = self.graphed.structure_of(key)
        if known is None or known.same(self.structure):
            return ""
        name = known.difference(self.structure, names_of_arguments(*self.arguments)).partition(":")[0]
        why = self.graphed.states.why_apart(name)
        return f"{name} ({why})" if why else name

    def eager_results(self) -> list[torch.Tensor]:
        return tensors_of(self.result if self.opened is None else self.opened)

    def to_capture(self) -> tuple[Any, FlatFunction]:
        flat = FlatFunction(self.while_capturing(), self.structure, name=name_of(self.graphed.original))
        return flat, flat

    def while_capturing(self) -> Callable[..., Any]:
        """The function, as a graph may hold it."""
        self.has_captured = True
        if self.state is not None:
            self.graphed.states.release(self.state)  # kept for tensors of other shapes, perhaps
        run, interrupts = Weakly(self.graphed.run_original), self.interrupts  # all that the graph may hold of this call
        this_call = weakref.ref(self)

        def function(*args: Any, **kwargs: Any) -> Any:
            trail = Trail()
            answers: Optional[Answers] = None
            call = this_call()
            try:
                if call is None or call.state is None:
                    return run(*args, **kwargs)
                follows = call._follows_numbers()
                if follows:
                    args, kwargs = call._with_numbers(args, kwargs, trail.stand_ins(call.values))
                watch = call.graphed.watch
                stores = watch.stores()
                device = call.device()
                answers = Answers(device, call.state.late.get(call.shapes()), call.graphed.checks_reads)
                reads = HostReads(call.graphed.original, call.read_arguments(), device)
                followed = (indexing, making) if follows else (nullcontext(), nullcontext())
                with call.graphed.found, followed[0], followed[1], answers, reads:
                    reads.returned.append(with_leaves(waited_for(run(*args, **kwargs)), is_followed, Expression.of))
                    call.graphed.handed_on.check_capture(tensors_of(reads.returned[0]))
                    call.graphed.handed_on.finish(is_capture=True)
                    shown = plain_in(reads.returned[0])
                    answers.take(reads.returned[0])
                kept = watch.kept_by_capture(reads, stores)
                call.graphed.handed_on.check_capture([place.get() for place in kept.values()])
                call.note_reads(reads)  # what it read now is what the graph freezes
                if call.state.refusal:
                    refuse(call.state.refusal, _FIX)
                del args, kwargs
                trail.is_over = True
                if follows:
                    if trail.is_kept():
                        refuse("the function keeps a number among its arguments", "return it, and keep it outside")
                    call._trail = trail
                check_returned(reads, call.state.returned, shown)
                return with_kept(opened(answers.result(), reads.own), kept.values())
            except Exception:
                raise
            except BaseException as interrupt:
                interrupts.append(interrupt)
                raise
            finally:
                trail.is_over = True
                if answers is not None and call is not None:
                    call._reads_meet_numbers = answers.met_followed

        return function


def name_of(function: Any) -> str:
    return getattr(function, "__qualname__", None) or type(function).__qualname__
