"""Random numbers that a function draws on the host: `lam = np.random.beta(alpha, alpha)`, `if random.random() < 0.5:`. And, where it
computes on a GPU, tensors that it draws on the CPU (see _drawn_tensors).

A replay runs no Python, and draws nothing. So what the function draws is drawn before the call, by the same calls in the same
order, and handed on as numbers among its arguments that change (see _numbers): each outcome of a comparison has graphs of its own,
and what operations are given is a parameter of the graph. Where the function runs, it is given these numbers in place of drawing.

That a function always makes the same draws is seen in one eager call, for tensors one of each shape of its arguments. One that makes others after all has the generators put back
to where eager would have them, and stays eager.
"""

import ctypes
import random
import sys
import threading
from functools import partial
from typing import Any, Callable, NamedTuple, Optional, Sequence

import torch

from . import _drawn_tensors as tensors
from ._errors import refuse
from ._load import _C
from ._numbers import is_followed, plain
from ._replaced import Replaced
from ._structure import shapes_of

_ARGUMENTS = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout)
_MOST_SHAPES = 16  # of arguments
_FIX = "draw on the device, or draw before the call and pass the number as an argument"


class _Source(NamedTuple):
    """A module whose functions draw from one generator."""

    name: str
    module: Any
    generator: Any
    save: Callable[[], Any]
    put_back: Callable[[Any], None]

    def names(self) -> Sequence[str]:
        """Of the functions that move the generator."""
        if self.module is torch:
            return tensors.NAMES
        return [name for name, value in vars(self.module).items() if getattr(value, "__self__", None) is self.generator]


def _sources(with_tensors: bool) -> list[_Source]:
    sources = [_Source("random", random, random._inst, random._inst.getstate, random._inst.setstate)]
    numpy_random = sys.modules.get("numpy.random")
    generator = getattr(getattr(numpy_random, "mtrand", None), "_rand", None)
    if generator is not None:
        save = partial(generator.get_state, legacy=False)
        sources.append(_Source("numpy.random", numpy_random, generator, save, generator.set_state))
    if with_tensors:
        sources.append(_Source("torch", torch, torch.default_generator, torch.get_rng_state, torch.set_rng_state))
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


def _bytes_of(state: torch.Tensor) -> bytes:
    return ctypes.string_at(state.data_ptr(), state.nbytes)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):  # in a run that is watched: by no operation
        return _bytes_of(one) == _bytes_of(other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return bool(one.tobytes() == other.tobytes()) if hasattr(one, "tobytes") else bool(one == other)


def takes_tensors(device: str) -> bool:
    """Whether tensors that a step on this type of device draws on the CPU are drawn before it: on the CPU its graph draws them."""
    return device != "cpu"


class Draw(NamedTuple):
    """One call that draws a number."""

    name: str  # "numpy.random.beta"
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]

    def make(self) -> Any:
        return self.function(*self.args, **dict(self.kwargs))

    def is_plain(self) -> bool:
        return all(map(_is_plain, (*self.args, *(value for _, value in self.kwargs))))

    @property
    def gives_tensors(self) -> bool:
        return _gives_tensors(self.name)

    def same(self, other: "Draw") -> bool:
        return self.function == other.function and repr((self.args, self.kwargs)) == repr((other.args, other.kwargs))


def _gives_tensors(name: str) -> bool:
    return name.startswith("torch.")


def _is_plain(argument: Any) -> bool:
    return all(map(_is_plain, argument)) if isinstance(argument, (tuple, list)) else type(argument) in _ARGUMENTS


class _Here(threading.local):
    taker: Any = None  # who is asked for draws on this thread


_here = _Here()


def _stand_in(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    gives_tensors = _gives_tensors(name)

    def draw(*args: Any, **kwargs: Any) -> Any:
        taker = None if torch.compiler.is_compiling() else _here.taker
        if gives_tensors and taker is not None:
            taker = taker.of_tensors() if tensors.draws_on_cpu(args, kwargs) else None
            kwargs = kwargs if taker is None else {**kwargs, "device": "cpu"}  # the default may be another one before the call
        return function(*args, **kwargs) if taker is None else taker.take(Draw(name, function, args, tuple(kwargs.items())))

    return draw


_lock = threading.Lock()
_all_replaced: dict[str, Replaced] = {}  # one for each source, which all threads share


def _replaced(source: _Source) -> Replaced:
    """All functions of the module that move its generator."""
    with _lock:
        known = _all_replaced.get(source.name)
        if known is None:
            all_of = [(source.module, name, partial(_stand_in, f"{source.name}.{name}")) for name in source.names()]
            known = Replaced(all_of)
            _all_replaced[source.name] = known
        return known


class _Taking:
    """While it is entered, this thread's draws come to it."""

    def __init__(self, with_tensors: bool) -> None:
        self.with_tensors = with_tensors

    def __enter__(self) -> Any:
        self._replaced = [_replaced(source) for source in _sources(self.with_tensors)]
        for one in self._replaced:
            one.__enter__()
        self._outer, _here.taker = _here.taker, self
        return self

    def __exit__(self, *error: Any) -> None:
        _here.taker = self._outer
        for one in self._replaced:
            one.__exit__()

    def of_tensors(self) -> Any:
        """The innermost one that takes drawn tensors."""
        if self.with_tensors:
            return self
        return None if self._outer is None else self._outer.of_tensors()

    def take(self, draw: Draw) -> Any:
        raise NotImplementedError


class Recording(_Taking):
    """The draws of one eager call.

    Args:
        device: the type of device that it computes on.
    """

    def __init__(self, device: str) -> None:
        super().__init__(with_tensors=takes_tensors(device))
        self.draws: list[Draw] = []
        self._drawn: list[Any] = []
        self._uses: list[Optional[tensors.Use]] = []
        self._before = _saved(_sources(self.with_tensors))

    def take(self, draw: Draw) -> Any:
        drawn, use = draw.make(), None
        self.draws.append(draw)
        if draw.gives_tensors:
            self._drawn.append(drawn.clone())
            drawn, use = tensors.watched(drawn)
        else:
            self._drawn.append(drawn)
        self._uses.append(use)
        return drawn

    def explains_all(self) -> bool:
        """Whether the call drew something, and these draws and no others moved the generators."""
        if not self.draws or not all(type(one) in (int, float, torch.Tensor) for one in self._drawn):
            return False
        if not all(draw.is_plain() for draw in self.draws):
            return False
        after = _saved([source for source, _ in self._before])
        try:
            _put_back(self._before)
            again = [draw.make() for draw in self.draws]
            return all(map(_is_same_outcome, again, self._drawn)) and _is_as(after)
        finally:
            _put_back(after)

    def ways(self) -> list[tensors.Way]:
        """How each draw is handed on."""
        return list(map(tensors.Way.of, self._uses))


def _is_same_outcome(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return repr(one) == repr(other)


class _Serving(_Taking):
    """Gives a run of the function numbers that were drawn before."""

    def __init__(self, expected: "_Expected", given: Sequence[Any], drawn: Sequence[Any], before: _Saved) -> None:
        super().__init__(any(draw.gives_tensors for draw in expected.draws))
        self._draws = expected.draws
        self._ways = expected.ways
        self._given = given  # among the arguments of the run, which may be a capture's
        self._drawn = drawn
        self._uses: list[tensors.Use] = []
        self._before = before  # the generators
        self._after = _saved([source for source, _ in before])
        self._next = 0
        self.is_over = False  # it draws otherwise
        self.was_misused = False  # it draws the same, and does something else with it

    def take(self, draw: Draw) -> Any:
        if not self.is_over and self._next < len(self._draws) and self._draws[self._next].same(_plainly(draw)):
            at, self._next = self._next, self._next + 1
            if not self._ways[at].is_number:
                return self._given[at]
            drawn, use = self._ways[at].given(self._drawn[at], self._given[at], self._refuse_use)
            self._uses.append(use)
            return drawn
        expected = self._draws[self._next].name if self._next < len(self._draws) else ""
        self._give_up(f"in place of {expected}" if expected else "after all others", draw.name)
        return _plainly(draw).make()

    def finish(self) -> None:
        for use in self._uses:
            use.end()
        if not self.is_over and self._next < len(self._draws):
            self._give_up("", f"nothing in place of {self._draws[self._next].name}")

    def check(self) -> None:
        """At the end of a run that drew what was expected."""
        if not self.is_over and not _is_as(self._after):
            what = "the function draws random numbers of the host in a way that its calls before did not"
            refuse(f"{what}; those of this call are not the ones of eager", _FIX, rule="PG604")

    def _refuse_use(self) -> None:
        """What was used as a number alone, or compared alone, is not any more."""
        if _C.is_recording():
            refuse("the function uses a number that it draws on the host in another way than in its calls before", _FIX, rule="PG604")
        self.was_misused = True

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
    if type(value) in (tuple, list):
        return type(value)(map(_asked, value))
    if not is_followed(value):
        return value
    return float(value) if type(plain(value)) is float else int(value)


class _Expected(NamedTuple):
    """What the function draws, and its graphs."""

    draws: Sequence[Draw]
    ways: Sequence[tensors.Way]
    sources: Sequence[_Source]
    names: Sequence[str]
    graphed: Any

    def arguments(self, drawn: Sequence[Any]) -> dict[str, Any]:
        """What its graphs are given."""
        return {name: way.argument(one) for name, one, way in zip(self.names, drawn, self.ways)}


class Draws:
    """Of one function: what it draws, and the graphs of calls that are given it.

    Args:
        function: the function.
        graphed: makes a graphed function of it whose eager runs call what it is given in place of the function.
    """

    def __init__(self, function: Callable[..., Any], graphed: Callable[[Callable[..., Any]], Any]) -> None:
        self._function = function
        self._graphed = graphed
        self._known: dict[tuple, _Expected] = {}  # by shapes, where it draws tensors
        self._by_shapes = False
        self._here = threading.local()
        self.are_over = False  # they are others in each call

    @property
    def are_followed(self) -> bool:
        return bool(self._known) and not self.are_over

    def expected(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Optional[_Expected]:
        """What a call with these arguments draws; None: that is not known."""
        return self._known.get(shapes_of((args, kwargs)) if self._by_shapes else ())

    def follow(self, recording: Recording, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """After an eager call. Whether later calls like it are given what they draw."""
        if self.are_over or len(self._known) == _MOST_SHAPES or not recording.explains_all():
            return False
        self._by_shapes = self._by_shapes or any(draw.gives_tensors for draw in recording.draws)
        shapes = shapes_of((args, kwargs)) if self._by_shapes else ()
        if shapes in self._known:
            return False
        used = {draw.name.rpartition(".")[0] for draw in recording.draws}
        made: Any = self._graphed(partial(self._run, shapes))
        self._known[shapes] = _Expected(
            draws=recording.draws,
            ways=recording.ways(),
            sources=[source for source in _sources(with_tensors=True) if source.name in used],
            names=[f"{draw.name}, draw {i + 1}" for i, draw in enumerate(recording.draws)],
            graphed=made,
        )
        made.draws.are_over = True  # it is given them
        return True

    def call(self, expected: _Expected, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        before = _saved(expected.sources)
        drawn = [draw.make() for draw in expected.draws]
        outer, self._here.call = getattr(self._here, "call", None), (drawn, before)
        try:
            return expected.graphed(*args, **kwargs, **expected.arguments(drawn))
        finally:
            self._here.call = outer

    def _run(self, shapes: tuple, *args: Any, **kwargs: Any) -> Any:
        """The function, in an eager call of the graphed one or in its capture."""
        expected = self._known[shapes]
        drawn, before = self._here.call
        serving = _Serving(expected, [kwargs.pop(name) for name in expected.names], drawn, before)
        with serving:
            try:
                result = tensors.plain_tensors(self._function(*args, **kwargs))
            finally:
                serving.finish()
                self.are_over = self.are_over or serving.is_over or serving.was_misused
        serving.check()
        return result

    def functions(self) -> list[Any]:
        return [one.graphed for one in self._known.values()]

    def forget(self) -> None:
        for function in self.functions():
            function.reset()
        self._known, self._by_shapes, self.are_over = {}, False, False
