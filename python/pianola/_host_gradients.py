"""Into which gradients a call stores, or may store: `p.grad = None`, `zero_grad()`. No operation shows it."""

from types import CodeType, FrameType
from typing import Any, Iterable, Iterator

import torch

from ._followed import kind_of_code
from ._host_places import GONE, KEYED, LISTED, Place, Store, held, hold

_SETTERS = {"setattr", "delattr", "__setattr__", "__delattr__"}
_MOST_ENTRIES = 1000  # of a container


class GradientStores:
    """Those of one call. Keeps no tensor alive."""

    def __init__(self) -> None:
        self._stored: list[Any] = []
        self._cleared: list[Any] = []

    @property
    def stored(self) -> list[torch.Tensor]:
        """Leaves into whose `.grad` its code may have stored: all that it met, where one is not known."""
        return _leaves_of(self._stored)

    @property
    def cleared(self) -> list[torch.Tensor]:
        """Leaves whose `.grad` is None, as zero_grad() of torch's has made it, whatever it was."""
        return _leaves_of(self._cleared)

    def note_zero_grad(self, frame: FrameType) -> None:
        """One of torch's begins: of a module or an optimizer."""
        owner, to = frame.f_locals.get("self"), self._cleared if frame.f_locals.get("set_to_none", True) else self._stored
        if isinstance(owner, torch.nn.Module):
            to += map(hold, owner.parameters())
        elif isinstance(owner, torch.optim.Optimizer):
            to += (hold(one) for group in owner.param_groups for one in group["params"])

    def find(self, stores: Iterable[Store], codes: Iterable[CodeType], met: Iterable[tuple], places: Iterable[Place]) -> None:
        """At the end of the call: what else its code has stored.

        Args:
            codes: that ran.
            met: objects of the call: (reference, class, names).
        """
        own = (store for store in stores if (store.kind, store.key) == ("attribute", "grad") and kind_of_code(store.code) != 2)
        owners = [held(store.owner) for store in own]
        self._stored += (hold(owner) for owner in owners if isinstance(owner, torch.Tensor))
        if any(owner is None or owner is GONE for owner in owners) or any(map(_stores_by_name, codes)):
            self._stored += map(hold, _all_leaves(met, places))


def _stores_by_name(code: CodeType) -> bool:
    return "grad" in code.co_consts and not _SETTERS.isdisjoint(code.co_names)


def _all_leaves(met: Iterable[tuple], places: Iterable[Place]) -> Iterator[Any]:
    """And whatever lies beside them."""
    for reference, _, _ in met:
        one = held(reference)
        yield from one._parameters.values() if isinstance(one, torch.nn.Module) and "_parameters" in vars(one) else (one,)
    for place in places:
        container = place.owner if place.kind == "contents" else None
        if isinstance(container, (*KEYED, *LISTED)) and len(container) <= _MOST_ENTRIES:
            yield from container.values() if isinstance(container, KEYED) else container


def _leaves_of(references: list[Any]) -> list[torch.Tensor]:
    """Each once; also those that are frozen now, which may have a gradient."""
    tensors = {id(one): one for one in map(held, references) if isinstance(one, torch.Tensor)}
    return [one for one in tensors.values() if one.is_leaf and (one.requires_grad or isinstance(one, torch.nn.Parameter))]
