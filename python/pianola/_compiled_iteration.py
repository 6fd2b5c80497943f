"""`pianola.FullIteration(compile=...)`: each stage chooses between its plain graphs and those with its modules compiled."""

import threading
import weakref
from typing import Any, Callable, Iterable, Optional

import torch
from torch.utils import _pytree as pytree

from ._call import name_of
from ._called_modules import first_line
from ._compile_choice import CompileChoice, shapes_of
from ._compiled_modules import CompiledModules
from ._errors import CaptureError, UsageError, refuse
from ._full_iteration import FullIteration
from ._load import _C
from ._static_inputs import StaticInputs
from ._weakly import Weakly

_BUCKETS = "its static inputs have buckets, whose graphs are captured before they have run once"


class CompiledStage:
    """A stage of a FullIteration with its modules compiled, as an iteration of its own."""

    def __init__(self, owner: "StageChoice", modules: CompiledModules, iteration: FullIteration) -> None:
        self._owner = weakref.ref(owner)
        self._stage: str = owner.stage.name
        self._modules = modules
        self._iteration = iteration

    def __call__(self, microbatches: Any) -> Any:
        owner = self._owner()
        assert owner is not None, "whoever calls has it"
        try:
            return self._iteration(microbatches, self._stage)
        except (CaptureError, UsageError) as error:
            if owner.choice.is_decided or not self._iteration._capture_has_failed:
                raise  # the user's own, perhaps, in the middle of an iteration or behind it
            self._modules.failure = first_line(error)
            return owner.call_plainly((microbatches,), {})

    def info(self) -> "_C.FullIterationInfo":
        return self._iteration.info()

    def forget_graphs(self) -> None:
        self._iteration.reset()


class StageChoice:
    """What runs the iterations of one stage."""

    def __init__(self, iteration: FullIteration, stage: "_C.Stage", function: Callable[[Any], Any], options: dict[str, Any]) -> None:
        self._iteration = weakref.ref(iteration)
        self.stage = stage
        self.original = function
        self._options = options
        self.choice = CompileChoice(Weakly(self.call_plainly), Weakly(self._with_modules), options)

    def __call__(self, microbatches: Any) -> Any:
        compiled = self.choice.compiled
        if compiled is not None and self.why_not((microbatches,)):
            return self._owner()._run_plainly(self.stage, microbatches)
        if not self.choice.is_decided:
            return self.choice.call(self, (microbatches,), {})
        return self._owner()._run_plainly(self.stage, microbatches) if compiled is None else compiled(microbatches)

    def _owner(self) -> FullIteration:
        iteration = self._iteration()
        assert iteration is not None, "whoever calls has it"
        return iteration

    def call_plainly(self, args: tuple, kwargs: dict) -> Any:
        """In the plain graph."""
        return self._owner()._run_plainly(self.stage, *args)

    def run_original(self, microbatches: Any) -> Any:
        """An eager iteration, with results as all others have."""
        inputs = microbatches.microbatches() if isinstance(microbatches, StaticInputs) else microbatches
        result = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, self.original(inputs))
        self._owner()._follow(self.stage)
        return result

    def why_not(self, args: tuple) -> str:
        """Where graphs are made of what has never run."""
        return _BUCKETS if isinstance(args[0], StaticInputs) and args[0].bucket else ""

    @staticmethod
    def shapes(args: tuple, kwargs: dict) -> Any:
        """Equal for iterations whose times can be compared."""
        (microbatches,) = args
        return shapes_of(tuple(microbatches.tensors()) if isinstance(microbatches, StaticInputs) else args, {})

    def plain_info(self) -> "_C.FullIterationInfo":
        """Of this stage's plain graphs alone."""
        info = self._owner()._plain_info()
        info.signatures = [one for one in info.signatures if one.stage == self.stage.name]
        return info

    def drop_plain_graphs(self) -> None:
        """Where the compiled ones were chosen."""
        self._owner()._drop_plain_graphs(self.stage)

    def _with_modules(self, modules: CompiledModules) -> CompiledStage:
        original = self.original

        def run(microbatches: Any) -> Any:
            with modules:
                return original(microbatches)

        run.__name__, run.__qualname__ = name_of(original).rpartition(".")[2], name_of(original)  # in messages
        return CompiledStage(self, modules, FullIteration(run, run, **self._options["iteration"] | {"on_fallback": Weakly(self._report)}))

    def _report(self, reason: str) -> None:
        if self.choice.is_decided:  # before, the choice says it
            self._owner()._report(reason)

    def told(self) -> list[str]:
        """What became of compiling."""
        failure = self.choice.failure()
        return self.choice.said + ([f"called as they are since then: {failure}"] if failure else [])


class Choices:
    """Of the stages of a FullIteration."""

    def __init__(self, iteration: FullIteration, functions: dict[Any, Callable[[Any], Any]], options: dict[str, Any]) -> None:
        self._turn = threading.RLock()
        self.of = {stage: StageChoice(iteration, stage, function, options) for stage, function in functions.items()}

    def run(self, stage: Any, microbatches: Any) -> Any:
        """An iteration. One at a time: those of the two kinds use the same parameters, and know nothing of each other."""
        if not self._turn.acquire(blocking=False):
            refuse(
                "a FullIteration was called while another thread is in a call of it; one call at a time is allowed",
                "give each thread its own, or take a lock around the calls",
            )
        try:
            return self.of[stage](microbatches)
        finally:
            self._turn.release()

    def reset(self, stages: Iterable[Any]) -> None:
        """Nothing is chosen."""
        for stage in stages:
            one = self.of.get(stage)
            if one is not None:
                if one.choice.compiled is not None:
                    one.choice.compiled.forget_graphs()
                one.choice.restart()

    def add_to(self, info: "_C.FullIterationInfo") -> None:
        """Signatures of what is compiled, and what was said."""
        signatures = info.signatures
        for stage, one in self.of.items():
            compiled = one.choice.compiled
            if compiled is None:
                continue
            more = compiled.info()
            info.evictions += more.evictions
            info.pool_bytes += more.pool_bytes
            info.input_bytes += more.input_bytes
            info.unfollowed = info.unfollowed + [what for what in more.unfollowed if what not in info.unfollowed]
            theirs = [known for known in more.signatures if known.stage == stage.name]
            signatures = theirs + [known for known in signatures if known.stage != stage.name or not one.choice.is_decided]
        info.signatures = sorted(signatures, key=lambda known: known.stage)  # training first
        info.compiled = [f"{stage.name}: {told}" for stage, one in self.of.items() for told in one.told()]

    def state_dict(self) -> dict[str, Optional[bool]]:
        return {stage.name: one.choice.state() for stage, one in self.of.items()}

    def load_state_dict(self, state: dict[str, Optional[bool]]) -> None:
        """@param state  {} is of an iteration that does not compile: nothing is chosen."""
        known = state.keys() <= {stage.name for stage in self.of}
        if not known or not all(any(value is one for one in (None, True, False)) for value in state.values()):
            refuse("this is no state of a FullIteration with these stages", "pass what state_dict() returned")
        self.reset(self.of)
        for stage, one in self.of.items():
            chosen = state.get(stage.name)
            if chosen is not None:
                one.choice.pin(one, chosen)
