"""Transformer Engine's arguments for FP8, on layers that `pianola.fp8.convert` made.

All callables are captured in one region, and those that are not to be in 8 bits in one inside of it that is off. Where a program calls
them it has a region of its own, as with Transformer Engine; a call opens the region of the capture inside of that, where both compute the
same.
"""

import contextlib
import inspect
from typing import Any, Callable, Iterator, Optional

import torch

from . import _fp8_recipes, fp8
from ._errors import refuse
from ._graphed_forward import GraphedForward
from ._pass_hooks import Given

_WHERE = "make_graphed_callables"


class Quantisation:
    """What the arguments say of the callables of one capture."""

    def __init__(self, arguments: dict[str, Any], targets: list[torch.nn.Module]) -> None:
        self._targets = targets
        self._on = _one_for_each(arguments["enabled"], targets)
        self._calibrates = bool(arguments["calibrating"]) and not all(self._on)
        self._keeps_weights = bool(arguments["cache_quantized_params"])
        recipe = arguments["recipe"]
        self._recipe = None if recipe is None or not any(self._on) else fp8.as_recipe(recipe)
        self._group = arguments["amax_reduction_group"] if _fp8_recipes.reduces_amaxes(recipe) else None
        self._opened: list[fp8.autocast] = []  # inside of that of the capture
        if self._calibrates and any(self._on):
            refuse(
                "calibrating: some callables are in 8 bits, and others are to be calibrated, in one capture",
                "leave calibrating out, or calibrate all of them with enabled=False",
                where=_WHERE,
                kind="UnsupportedError",
            )
        for i, target in enumerate(targets):
            if self._on[i] or self._calibrates:
                _check_layers(target, i, len(targets), "enabled" if self._on[i] else "calibrating")

    @contextlib.contextmanager
    def around_capture(self) -> Iterator[None]:
        """The region of the capture."""
        try:
            # A captured pass is none of a first microbatch: those before it, of which no backward was captured yet, would lose theirs.
            with self._captured_in(False if self._keeps_weights else None):
                yield
        finally:
            while self._opened:  # a forward failed
                self._leave(None)

    def capture_hooks(self, given: Given) -> Given:
        """Those of the caller, and ours: callables that are not to be in 8 bits run in a region that is off, and the first run of
        others, a warm-up, is that of a first microbatch."""
        if not any(self._on) or (all(self._on) and not self._keeps_weights):
            return given
        if given is not None and (not isinstance(given, (list, tuple)) or len(given) != len(self._on)):
            return given  # which is refused
        entries = [None] * len(self._on) if given is None else given
        return [self._with_region(entry or {}, on) for entry, on in zip(entries, self._on)]

    def _with_region(self, entry: dict[str, Any], on: bool) -> dict[str, Any]:
        first = [True]

        def enter(module: Any) -> None:
            region = self._captured_in(first[0] if self._keeps_weights else None) if on else fp8.autocast(enabled=False)
            first[0] = False
            self._opened.append(region.__enter__())

        merged = dict(entry)
        for kind, ours in (("forward_pre_hooks", enter), ("forward_hooks", self._leave)):
            merged[kind] = {**entry.get(kind, {}), _Ours: ours}
        return merged

    def _leave(self, module: Any) -> None:
        self._opened.pop().__exit__()

    def _captured_in(self, is_first: Optional[bool]) -> fp8.autocast:
        on = any(self._on)
        return fp8.autocast(on, self._recipe, None, self._calibrates, is_first if on else None)

    def give_to(self, forwards: list[tuple[torch.nn.Module, GraphedForward]]) -> None:
        """From now on they are called in the region of the capture."""
        on = {id(target): on for target, on in zip(self._targets, self._on)}
        for target, forward in forwards:
            forward.__class__ = QuantisedForward
            assert isinstance(forward, QuantisedForward)
            forward.place = _Place(self, target, forward, on[id(target)])
        self._targets = []  # which hold the forwards


class _Ours:
    """Its place in a dict of hooks."""


class _Place:
    """Of one callable: the regions in which it may be called."""

    def __init__(self, all_of_them: Quantisation, target: torch.nn.Module, forward: GraphedForward, is_on: bool) -> None:
        self.keeps_weights = all_of_them._keeps_weights
        self.takes_microbatch = _takes(forward._original, "is_first_microbatch")
        self._region = all_of_them._captured_in
        self._said = all_of_them._captured_in(None)
        self._is_on = is_on
        self._calibrates = all_of_them._calibrates and not is_on
        self._group = all_of_them._group
        self._own = _own_recipe(target)

    def around_call(self, is_first: Optional[bool]) -> "contextlib.AbstractContextManager[Any]":
        """Where the region of the call computes otherwise, nothing: the call itself is refused, with words for both."""
        opened = fp8.open_regions()
        now = opened[-1] if opened else None
        if not self._serves(now):
            return contextlib.nullcontext()
        if self._is_on or self._calibrates:
            self._check_group(opened)
        wanted = self._region(is_first)
        return contextlib.nullcontext() if _alike(wanted, now) else wanted

    def around_eager(self, is_first: Optional[bool]) -> "contextlib.AbstractContextManager[Any]":
        opened = fp8.open_regions()
        now = opened[-1] if opened else None
        if now is None or not now.enabled or is_first is None or not self.keeps_weights:
            return contextlib.nullcontext()
        return fp8.autocast(True, now.recipe, None, now.calibrating, is_first)

    def _serves(self, now: Optional[fp8.autocast]) -> bool:
        if self._is_on:
            return now is not None and now.enabled and self._full(now.recipe) == self._full(self._said.recipe)
        return not self._calibrates or (now is not None and now.calibrating)

    def _full(self, recipe: Optional[fp8.Recipe]) -> Optional[fp8.Recipe]:
        return self._own if recipe is None else recipe

    def _check_group(self, opened: list[fp8.autocast]) -> None:
        """The outermost region makes amaxes those of all ranks."""
        outermost = next(one for one in opened if one.enabled or one.calibrating)
        if self._group is not None and outermost.group is not self._group:
            refuse(
                "captured for amaxes of all ranks of amax_reduction_group, and called in a region "
                + ("without a group" if outermost.group is None else "of another group")
                + "; nothing was launched",
                "give the region the same: pianola.fp8.autocast(group=...), which computes scales at its end",
                where=_WHERE,
                kind="GuardError",
            )


class QuantisedForward(GraphedForward):
    """Is called in the region of its capture, inside of the caller's, and says which microbatch it is."""

    place: _Place

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        place, is_first = self.place, kwargs.pop("is_first_microbatch", None)
        if not self.is_for_graph():
            if is_first is not None and (place.takes_microbatch or not place.keeps_weights):
                kwargs["is_first_microbatch"] = is_first
            with place.around_eager(is_first):
                return self._original(*args, **kwargs)
        if not place.keeps_weights:
            if is_first is not None and place.takes_microbatch:
                kwargs["is_first_microbatch"] = is_first
            is_first = None
        elif not isinstance(is_first, bool):
            raise ValueError("`is_first_microbatch` boolean kwarg must be provided for FP8 weight caching.")
        with place.around_call(is_first):
            return super().__call__(*args, **kwargs)


def _one_for_each(enabled: Any, targets: list[torch.nn.Module]) -> list[bool]:
    if enabled is None:
        enabled = False
    if isinstance(enabled, (tuple, list)):
        if len(enabled) != len(targets):
            raise ValueError(f"enabled length ({len(enabled)}) must match modules length ({len(targets)})")
        return [bool(one) for one in enabled]
    if not isinstance(enabled, bool):
        raise TypeError(f"enabled must be a bool or a tuple of bools, but got {type(enabled).__name__}")
    return [enabled] * len(targets)


def _check_layers(target: torch.nn.Module, number: int, count: int, argument: str) -> None:
    which = f"'{type(target).__name__}'" if count == 1 else f"callable {number + 1} ('{type(target).__name__}')"
    for name, module in target.named_modules():
        if any(one.__module__.split(".")[0] == "transformer_engine" for one in type(module).__mro__):
            refuse(
                f"{argument}: {name or 'the module'} ({type(module).__name__}) is Transformer Engine's, and Pianola does not capture "
                "Transformer Engine's FP8, whose scales live outside of the graphs",
                "make its linear layers of nn.Linear, and call pianola.fp8.convert(model); or capture this module outside of "
                "pianola.compat()",
                where=f"{_WHERE}, {which}",
                kind="UnsupportedError",
            )
    if not _layers_of(target):
        refuse(
            f"{argument}: {which} has no layer that computes in 8 bits",
            f"call pianola.fp8.convert(model) before, which makes them of nn.Linear, or leave {argument} off for it",
            where=_WHERE,
            kind="UnsupportedError",
        )


def _layers_of(target: torch.nn.Module) -> list[fp8.Float8Linear]:
    return [one for one in target.modules() if isinstance(one, fp8.Float8Linear) and one.recipe is not None]


def _own_recipe(target: torch.nn.Module) -> Optional[fp8.Recipe]:
    """The one that all layers were made with; None: they differ, or there are none."""
    recipes = {one.recipe for one in _layers_of(target)}
    return recipes.pop() if len(recipes) == 1 else None


def _alike(wanted: fp8.autocast, now: Optional[fp8.autocast]) -> bool:
    if now is None:
        return not wanted.enabled and not wanted.calibrating
    return (wanted.enabled, wanted.recipe, wanted.calibrating, wanted.is_first_microbatch) == (
        now.enabled,
        now.recipe,
        now.calibrating,
        now.is_first_microbatch,
    )


def _takes(function: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(function).parameters
    return name in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())
