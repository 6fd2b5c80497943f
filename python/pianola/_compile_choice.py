"""`pianola.graphed(compile=...)`: the modules of a step compiled by Inductor inside its graph, if that is right and faster.

Calls go to the plain graph first. Once that is replayed, one call runs eagerly and notes which modules it calls; behind it they are
compiled, and compared with eager on copies. Then the compiled step is warmed up and captured as any other, and calls go to either graph
in turn and are timed. Every call runs the step once, in one way, so that nothing has to be put back.
"""

import logging
import threading
import time
from typing import Any, Callable, Optional, Protocol, Union

import torch

from ._call import name_of
from ._called_modules import Called, Probe, first_line, modules_of, too_many
from ._compared_modules import Comparison, compare_all
from ._compiled_modules import CompiledModules
from ._errors import refuse
from ._graphed import GraphedFunction
from ._ignored_logs import logs_ignored
from ._load import _C
from ._patching import replacement
from ._process_groups import ranks
from ._structure import of_arguments
from ._timed_calls import Watch
from ._weakly import Weakly, owner_of

_log = logging.getLogger("pianola")
_REPLAYS = 2  # of the plain graph, before the compiler is asked
_MOST_CALLS = 32  # beyond the warm-up, until a function has been replayed, or never is
TURNS = 7  # timed replays of each, of which the first is left out
_MOST_TURNS = 200  # calls, until they have been
LEAST_GAIN = 0.02
NO_COMMON_CLOCK = "other processes might choose otherwise, each by its own clock; compile=True asks no clock"


def judge(is_wanted: bool, names: str, plain: Watch, compiled: Watch, seconds: float, comparison: Comparison) -> tuple[bool, str]:
    """Whether compiled code is taken after a race, and what there is to tell.

    Args:
        is_wanted: it is, whatever the race says.
        seconds: that compiling took.
    """
    takes = is_wanted or compiled.median() <= (1 - LEAST_GAIN) * plain.median()
    what = "compiled" if takes else "not compiled, as it gains less than 2 %"
    times = f"{compiled.median():.0f} us a call compiled, {plain.median():.0f} us plain"
    return takes, f"{what}: {names}, in {seconds:.1f} s; {times}; {comparison.told()}"


def _replays(info: Any) -> int:
    return sum(one.replays for one in info.signatures)


def _why_eager(info: Any) -> str:
    reasons = [one.reason for one in info.signatures if one.reason]
    return reasons[0] if reasons else "it was never replayed"


def shapes_of(args: tuple, kwargs: dict) -> Any:
    """Of the tensors among the arguments."""
    return tuple((tensor.shape, tensor.dtype, tensor.requires_grad) for tensor in of_arguments(args, kwargs)[0])


class Owner(Protocol):
    """Whose calls go to either graph."""

    original: Callable[..., Any]

    def run_original(self, *args: Any, **kwargs: Any) -> Any:
        """An eager call."""

    def why_not(self, args: tuple) -> str:
        """Why nothing can be compiled for it; empty: it may be tried."""

    def shapes(self, args: tuple, kwargs: dict) -> Any:
        """Equal for calls whose times can be compared."""

    def plain_info(self) -> Any:
        """Of the plain graphs alone; its signatures say `replays` and `reason`."""

    def drop_plain_graphs(self) -> None:
        """Where the compiled ones were chosen."""


class Compiled(Protocol):
    """The function with its modules compiled, graphed."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def info(self) -> Any: ...

    def forget_graphs(self) -> None: ...


class CompileChoice:
    """Between the plain graph of a function and one with its modules compiled. One thread at a time takes part; calls of others
    go to the plain graph meanwhile."""

    def __init__(self, plain: Callable[..., Any], compiled: Callable[[CompiledModules], Any], options: dict[str, Any]) -> None:
        self._plain = plain
        self._make_compiled = compiled
        self._asked_for: Union[bool, str] = options["compile"]
        self._closeness: Optional[float] = options["closeness"]
        self._generators = options["generators"]
        self._most_calls = _MOST_CALLS + 3 * int(options["warmup"])
        self._lock = threading.Lock()
        self.restart()

    def restart(self) -> None:
        """Nothing is chosen."""
        self.compiled: Optional[Compiled] = None
        self.is_decided = False
        self.said: list[str] = []
        self._wanted = self._asked_for
        self._is_pinned = False  # as it was chosen before: without a comparison and a race
        self._modules: Optional[CompiledModules] = None
        self._comparison = Comparison()
        self._seconds = 0.0
        self._calls = 0
        self._key: Any = None  # of the calls that are timed
        self._watches = (Watch(torch.device("cpu")), Watch(torch.device("cpu")))

    def state(self) -> Optional[bool]:
        return self.compiled is not None if self.is_decided else None

    def pin(self, owner: Owner, compiled: bool) -> None:
        """What was chosen before."""
        if compiled:
            self._wanted, self._is_pinned = True, True
        else:
            self._decide(owner, "not compiled, as it was chosen before")

    def failure(self) -> str:
        """Of code that was needed behind the choice."""
        return "" if self._modules is None else self._modules.failure

    def call(self, owner: Owner, args: tuple, kwargs: dict) -> Any:
        """A call before it is decided."""
        if not self._lock.acquire(blocking=False):
            return self._plain(args, kwargs)
        try:
            self._calls += 1
            if self._key is not None:
                return self._race(owner, args, kwargs)
            if self.compiled is not None:
                return self._warm_up(owner, args, kwargs)
            if self._is_pinned or _replays(owner.plain_info()) >= _REPLAYS:
                return self._look(owner, args, kwargs)
            result = self._plain(args, kwargs)
            if self._calls > self._most_calls:
                self._decide(owner, f"not compiled: {_why_eager(owner.plain_info())}")
            return result
        except BaseException as error:  # the user's, most likely
            if not self.is_decided and self.compiled is not None:
                self._decide(owner, f"not compiled: {type(error).__name__} was thrown while the compiled step was tried: {error}"[:300])
            raise
        finally:
            self._lock.release()

    def _look(self, owner: Owner, args: tuple, kwargs: dict) -> Any:
        """An eager call, which tells what there is to compile."""
        if self._wanted == "auto" and ranks() > 1:
            self._decide(owner, f"not compiled: {NO_COMMON_CLOCK}")
            return self._plain(args, kwargs)
        if refusal := owner.why_not(args):
            self._decide(owner, f"not compiled: {refusal}")
            return self._plain(args, kwargs)
        try:
            roots = modules_of(owner.original, args, kwargs)
        except Exception as error:  # what a name leads to may be anything
            self._decide(owner, f"not compiled: its modules cannot be found: {error}")
            return self._plain(args, kwargs)
        with Probe(roots) as probe:
            result = owner.run_original(*args, **kwargs)
        called = [one for one in probe.called.values()]
        if any(one.module is owner_of(owner.original) for one in called):
            probe.refusal = "it calls the module that it is a method of, which would be kept alive"
        refusal = probe.refusal or too_many(len(called))
        if not called and not refusal:
            known = [why for root in roots if (why := probe.refusals[id(root)])]  # of those that nothing could stand in for
            refusal = known[0] if known else "it calls no module that it finds by a name, in its arguments, or in its object"
        if self.is_decided or self.compiled is not None:  # by the call, which took a state
            return result
        if refusal:
            self._decide(owner, f"not compiled: {refusal}")
            return result
        try:
            self._compile(owner, called)
        except Exception as error:  # the call is over, and has its result
            self._decide(owner, f"not compiled: {first_line(error)}")
        return result

    def _compile(self, owner: Owner, called: list[Called]) -> None:
        modules = CompiledModules([one.module for one in called])
        begin = time.perf_counter()
        if not self._is_pinned:
            _log.info("%s: compiling %s", name_of(owner.original), modules.names())
            self._comparison = compare_all(called, self._closeness, self._generators)
            if self._comparison.failure:
                return self._decide(owner, f"not compiled: {self._comparison.failure}")
        self._seconds = time.perf_counter() - begin
        self._modules, self._calls = modules, 0
        self.compiled = self._make_compiled(modules)
        return None

    def _warm_up(self, owner: Owner, args: tuple, kwargs: dict) -> Any:
        running, modules = self.compiled, self._modules
        assert running is not None and modules is not None
        with logs_ignored():
            result = running(*args, **kwargs)
        if self.compiled is not running:  # the call has begun the choice anew
            return result
        info = running.info()
        if modules.failure:
            self._decide(owner, f"not compiled: {modules.failure}")
        elif _replays(info) > 0:
            if self._is_pinned:
                self._decide(owner, f"compiled: {modules.names()}, as it was chosen before", takes_compiled=True)
            else:
                self._key, self._calls = owner.shapes(args, kwargs), 0
                self._watches = Watch(modules.device()), Watch(modules.device())
        elif self._calls > self._most_calls:
            self._decide(owner, f"not compiled, as the compiled step stays eager: {_why_eager(info)}")
        return result

    def _race(self, owner: Owner, args: tuple, kwargs: dict) -> Any:
        running = self.compiled
        assert running is not None
        plain, compiled = self._watches
        if min(plain.count(), compiled.count()) >= TURNS and plain.is_settled() and compiled.is_settled():
            self._finish(owner)
        elif self._calls > _MOST_TURNS:
            self._give_up_timing(owner)
        elif owner.shapes(args, kwargs) == self._key and min(plain.count(), compiled.count()) < TURNS:
            if plain.count() <= compiled.count():
                return self._timed(plain, lambda: self._plain(args, kwargs), owner.plain_info)
            return self._timed(compiled, lambda: running(*args, **kwargs), running.info)
        return self._plain(args, kwargs) if self.compiled is None else self.compiled(*args, **kwargs)

    def _give_up_timing(self, owner: Owner) -> None:
        assert self._modules is not None
        takes = self._wanted is True
        what = f"compiled: {self._modules.names()}" if takes else "not compiled"
        self._decide(owner, f"{what}, not timed, as too few calls were alike; {self._comparison.told()}", takes)

    @staticmethod
    def _timed(watch: Watch, call: Callable[[], Any], info: Callable[[], Any]) -> Any:
        before = _replays(info())
        return watch.run(call, lambda: _replays(info()) > before)

    def _finish(self, owner: Owner) -> None:
        assert self._modules is not None
        plain, compiled = self._watches
        takes, told = judge(self._wanted is True, self._modules.names(), plain, compiled, self._seconds, self._comparison)
        self._decide(owner, told, takes)

    def _decide(self, owner: Owner, told: str, takes_compiled: bool = False) -> None:
        self.is_decided = True
        self.said.append(told)
        _log.info("%s: %s", name_of(owner.original), told)
        if takes_compiled:
            owner.drop_plain_graphs()
        elif self.compiled is not None:
            self.compiled.forget_graphs()
            self.compiled = self._modules = None


class ChoosingFunction(GraphedFunction):
    """A graphed function with the option `compile`."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any], module: Optional[torch.nn.Module] = None) -> None:
        super().__init__(function, options, module)
        self.choice = CompileChoice(Weakly(self._call_plainly), Weakly(self._with_modules), options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        choice = self.choice
        if not choice.is_decided:
            if torch.compiler.is_compiling():
                return self.original(*args, **kwargs)
            return choice.call(self, args, kwargs)
        compiled = choice.compiled
        return super().__call__(*args, **kwargs) if compiled is None else compiled(*args, **kwargs)

    def _call_plainly(self, args: tuple, kwargs: dict) -> Any:
        return super().__call__(*args, **kwargs)

    def _with_modules(self, modules: CompiledModules) -> GraphedFunction:
        made: GraphedFunction = GraphedFunction(self.original, self._options, None if self._module is None else self._module())
        original = self.original

        def run(*args: Any, **kwargs: Any) -> Any:
            with modules:
                return original(*args, **kwargs)

        made._run = run
        return made

    def why_not(self, args: tuple) -> str:
        """Where it stands in the place of a module's own forward."""
        module = None if self._module is None else self._module()
        if module is None or replacement(module) is not self:
            return ""
        return "a module by itself; graph the function that calls it, or compile the module before"

    shapes = staticmethod(shapes_of)

    def plain_info(self) -> "_C.GraphedInfo":
        """Of the plain graphs alone."""
        return super().info()

    def drop_plain_graphs(self) -> None:
        """Where the compiled ones were chosen."""
        super().forget_graphs()

    def forget_graphs(self) -> None:
        """Of both kinds, and the choice."""
        if self.choice.compiled is not None:
            self.choice.compiled.forget_graphs()
        super().forget_graphs()
        self.choice.restart()

    def info(self) -> "_C.GraphedInfo":
        """As GraphedFunction.info(), with what became of compiling its modules."""
        info = super().info()
        compiled, failure = self.choice.compiled, self.choice.failure()
        if compiled is not None:
            theirs = compiled.info()
            info.signatures = theirs.signatures + ([] if self.choice.is_decided else info.signatures)
            info.numbers = theirs.numbers + info.numbers
        info.compiled = self.choice.said + ([f"called as they are since then: {failure}"] if failure else [])
        return info

    def state_dict(self) -> dict[str, Any]:
        """What was chosen, for a checkpoint: a run that goes on from it computes with the same kernels."""
        return {"compiled": self.choice.state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what was chosen when the state was saved, from the next calls on: nothing is compared and timed again."""
        if not isinstance(state, dict) or not any(state.get("compiled", ...) is one for one in (None, True, False)):
            refuse("this is no state of a graphed function", "pass what state_dict() returned")
        self.forget_graphs()
        if state["compiled"] is not None:
            self.choice.pin(self, state["compiled"])
