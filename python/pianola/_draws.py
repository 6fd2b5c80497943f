"""Random numbers that a function draws on the host: `lam = np.random.beta(alpha, alpha)`, `if random.random() < 0.5:`.

A replay runs no Python, and draws nothing. So what the function draws is drawn before the call, by the same calls in the same
order, and handed on as numbers among its arguments that change (see _numbers): each outcome of a comparison has graphs of its own,
and what operations are given is a parameter of the graph. Where the function runs, it is given these numbers in place of drawing.

That a function always makes the same draws is seen in one eager call. One that makes others after all has the generators put back
to where eager would have them, and stays eager.
"""

import random
import sys
import threading
from functools import partial
from typing import Any, Callable, NamedTuple, Optional, Sequence

from ._errors import refuse
from ._load import _C
from ._numbers import is_followed, plain
from ._replaced import Replaced

_ARGUMENTS = (int, float, bool, str, type(None))
_FIX = "draw on the device, or draw before the call and pass the number as an argument"


class _Source(NamedTuple):
    """A module whose functions draw from one generator."""

    name: str
    module: Any
    generator: Any
    save: Callable[[], Any]
    put_back: Callable[[Any], None]


def _sources() -> list[_Source]:
    sources = [_Source("random", random, random._inst, random._inst.getstate, random._inst.setstate)]
    numpy_random = sys.modules.get("numpy.random")
    generator = getattr(getattr(numpy_random, "mtrand", None), "_rand", None)
    if generator is not None:
        save = partial(generator.get_state, legacy=False)
        sources.append(_Source("numpy.random", numpy_random, generator, save, generator.set_state))
    return sources


_Saved = Sequence[tuple[_Source, Any]]


def _saved(sources: Sequence[_Source]) -> _Saved:
    return [(source, source.save()) for source in sources]


def _put_back(saved: _Saved) -> None:
    for source, state in saved:
        source.put_back(state)


def _is_as(saved: _Saved) -> bool:
    """Whether the generators are where they were."""
    return all(_same(source.save(), state) for source, state in saved)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return bool(one.tobytes() == other.tobytes()) if hasattr(one, "tobytes") else bool(one == other)


class Draw(NamedTuple):
    """One call that draws a number."""

    name: str  # "numpy.random.beta"
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]

    def make(self) -> Any:
        return self.function(*self.args, **dict(self.kwargs))

    def is_plain(self) -> bool:
        """Whether each call may be given the same arguments."""
        return all(type(one) in _ARGUMENTS for one in (*self.args, *(value for _, value in self.kwargs)))

    def same(self, other: "Draw") -> bool:
        return self.function == other.function and repr((self.args, self.kwargs)) == repr((other.args, other.kwargs))


class _Here(threading.local):
    taker: Any = None  # who is asked for draws on this thread


_here = _Here()


def _stand_in(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def draw(*args: Any, **kwargs: Any) -> Any:
        if _here.taker is None:
            return function(*args, **kwargs)
        return _here.taker.take(Draw(name, function, args, tuple(kwargs.items())))

    return draw


_lock = threading.Lock()
_all_replaced: dict[str, Replaced] = {}  # one for each source, which all threads share


def _replaced(source: _Source) -> Replaced:
    """All functions of the module that move its generator."""
    with _lock:
        known = _all_replaced.get(source.name)
        if known is None:
            names = [name for name, value in vars(source.module).items() if getattr(value, "__self__", None) is source.generator]
            known = Replaced([(source.module, name, partial(_stand_in, f"{source.name}.{name}")) for name in names])
            _all_replaced[source.name] = known
        return known


class _Taking:
    """While it is entered, this thread's draws come to it."""

    def __enter__(self) -> Any:
        self._replaced = [_replaced(source) for source in _sources()]
        for one in self._replaced:
            one.__enter__()
        self._outer, _here.taker = _here.taker, self
        return self

    def __exit__(self, *error: Any) -> None:
        _here.taker = self._outer
        for one in self._replaced:
            one.__exit__()

    def take(self, draw: Draw) -> Any:
        raise NotImplementedError


class Recording(_Taking):
    """The draws of one eager call."""

    def __init__(self) -> None:
        self.draws: list[Draw] = []
        self._numbers: list[Any] = []
        self._before = _saved(_sources())

    def take(self, draw: Draw) -> Any:
        number = draw.make()
        self.draws.append(draw)
        self._numbers.append(number)
        return number

    def explains_all(self) -> bool:
        """Whether the call drew something, and these draws and no others moved the generators."""
        if not self.draws or any(type(one) not in (int, float) for one in self._numbers):
            return False
        if not all(draw.is_plain() for draw in self.draws):
            return False
        after = _saved([source for source, _ in self._before])
        try:
            _put_back(self._before)
            again = [draw.make() for draw in self.draws]
            return repr(again) == repr(self._numbers) and _is_as(after)
        finally:
            _put_back(after)


class _Serving(_Taking):
    """Gives a run of the function numbers that were drawn before."""

    def __init__(self, draws: Sequence[Draw], numbers: Sequence[Any], before: _Saved) -> None:
        self._draws = draws
        self._numbers = numbers
        self._before = before  # the generators
        self._after = _saved([source for source, _ in before])
        self._next = 0
        self.is_over = False  # it draws otherwise

    def take(self, draw: Draw) -> Any:
        if not self.is_over and self._next < len(self._draws) and self._draws[self._next].same(_plainly(draw)):
            self._next += 1
            return self._numbers[self._next - 1]
        expected = self._draws[self._next].name if self._next < len(self._draws) else ""
        self._give_up(f"in place of {expected}" if expected else "after all others", draw.name)
        return _plainly(draw).make()

    def finish(self) -> None:
        if not self.is_over and self._next < len(self._draws):
            self._give_up("", f"nothing in place of {self._draws[self._next].name}")

    def check(self) -> None:
        """At the end of a run that drew what was expected."""
        if not self.is_over and not _is_as(self._after):
            what = "the function draws random numbers of the host in a way that its calls before did not"
            refuse(f"{what}; those of this call are not the ones of eager", _FIX, rule="PG604")

    def _give_up(self, where: str, what: str) -> None:
        """From here on it draws for itself."""
        if self.is_over:
            return
        if _C.is_recording():
            refuse(f"the function draws {what} {where}".rstrip() + ", in some of its calls only", _FIX, rule="PG604")
        self.is_over = True
        _put_back(self._before)
        for draw in self._draws[: self._next]:
            draw.make()


def _plainly(draw: Draw) -> Draw:
    """With plain numbers for those that are followed, which are asked for their values: the draw depends on them."""
    kwargs = tuple((name, _asked(value)) for name, value in draw.kwargs)
    return draw._replace(args=tuple(map(_asked, draw.args)), kwargs=kwargs)


def _asked(value: Any) -> Any:
    if not is_followed(value):
        return value
    return float(value) if type(plain(value)) is float else int(value)


class Draws:
    """Of one function: what it draws, and the graphs of calls that are given it.

    Args:
        function: the function.
        graphed: makes a graphed function of it whose eager runs call what it is given in place of the function.
    """

    def __init__(self, function: Callable[..., Any], graphed: Callable[[Callable[..., Any]], Any]) -> None:
        self._function = function
        self._graphed = graphed
        self._draws: list[Draw] = []
        self._sources: list[_Source] = []
        self._names: list[str] = []
        self._here = threading.local()
        self._made: Any = None
        self.are_over = False  # they are others in each call

    @property
    def are_followed(self) -> bool:
        return self._made is not None and not self.are_over

    def follow(self, recording: Recording) -> bool:
        """After an eager call. Whether later calls are given what they draw."""
        if self.are_over or self._made is not None or not recording.explains_all():
            return False
        self._draws = recording.draws
        used = {draw.name.rpartition(".")[0] for draw in self._draws}
        self._sources = [source for source in _sources() if source.name in used]
        self._names = [f"{draw.name}, draw {i + 1}" for i, draw in enumerate(self._draws)]
        self._made = self._graphed(self._run)
        self._made.draws.are_over = True  # it is given them
        return True

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        outer, self._here.before = getattr(self._here, "before", ()), _saved(self._sources)
        numbers = [draw.make() for draw in self._draws]
        try:
            return self._made(*args, **kwargs, **dict(zip(self._names, numbers)))
        finally:
            self._here.before = outer

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        """The function, in an eager call of the graphed one or in its capture."""
        numbers = [kwargs.pop(name) for name in self._names]
        serving = _Serving(self._draws, numbers, self._here.before)
        with serving:
            try:
                result = self._function(*args, **kwargs)
            finally:
                serving.finish()
                self.are_over = self.are_over or serving.is_over
        serving.check()
        return result

    def functions(self) -> list[Any]:
        return [] if self._made is None else [self._made]

    def forget(self) -> None:
        for function in self.functions():
            function.reset()
        self._made, self.are_over = None, False
