"""Into which gradients a call stores, or may store: `p.grad = None`, `zero_grad()`. No operation shows it."""

import functools
import operator
import re
import types
from types import CodeType, FrameType
from typing import Any, Collection, Iterable, Iterator

import torch

from ._audit.files import TORCH, kind_of_file
from ._audit.once import once_per
from ._followed import kind_of_code
from ._host_places import GONE, KEYED, LISTED, Place, Store, held, hold

_SETTERS = {"setattr", "delattr", "__setattr__", "__delattr__"}
_MOST_ENTRIES = 1000  # of a container
_NO_GRADIENTS = re.compile("no_grad|is_grad_enabled|requires_grad")  # they speak of whether there are any
_GRADIENTS = {"grad", "grads", "autograd", "backward"}
_BY_NAME = {*_SETTERS, "__set__", "__delete__", "getattr", "hasattr", "__getattribute__", "attrgetter", "methodcaller"}
_SETTINGS = ("torch.autograd.grad_mode", "torch.amp.autocast_mode", "torch.cuda.amp.autocast_mode", "torch.backends")
_HIDE_NAMES = (functools.partial, operator.attrgetter, operator.methodcaller, torch.jit.ScriptFunction,
               torch.jit.ScriptModule)  # fmt: skip
_WORK_ON_THEM = ("torch.autograd", "torch.nn.utils.clip_grad")  # modules of functions whose code nobody watches


class GradientStores:
    """Those of one call. Keeps no tensor alive."""

    def __init__(self) -> None:
        self._stored: list[Any] = []
        self._cleared: list[Any] = []
        self.are_named = True  # by code that ran, or it may mean one that it does not name
        self._meets_torchs = False  # an optimizer, a scaler, a backward pass: torch's code that works on them, or may

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
        self._meets_torchs = True
        owner, to = frame.f_locals.get("self"), self._cleared if frame.f_locals.get("set_to_none", True) else self._stored
        if isinstance(owner, torch.nn.Module):
            to += map(hold, owner.parameters())
        elif isinstance(owner, torch.optim.Optimizer):
            to += (hold(one) for group in owner.param_groups for one in group["params"])

    def note_keeper(self, owner: Any) -> None:
        """A method of one of torch's objects begins."""
        self._meets_torchs |= not type(owner).__module__.startswith(_SETTINGS)

    def note_backward_pass(self) -> None:
        """backward() or grad() of torch's begins."""
        self._meets_torchs = True

    def find(self, stores: Iterable[Store], codes: Iterable[CodeType], met: Collection[tuple], places: Collection[Place]) -> None:
        """At the end of the call: what else its code has stored.

        Args:
            codes: that ran.
            met: objects of the call: (reference, class, names).
        """
        objects = (held(reference) for reference, _, _ in met)
        self.are_named = (self._meets_torchs or any(map(_names_gradients, codes)) or any(map(_hides_names, objects))
                          or any(_hides_names(place.before) for place in places))  # fmt: skip
        own = (store for store in stores if (store.kind, store.key) == ("attribute", "grad") and kind_of_code(store.code) != 2)
        owners = [held(store.owner) for store in own]
        self._stored += (hold(owner) for owner in owners if isinstance(owner, torch.Tensor))
        if any(owner is None or owner is GONE for owner in owners) or any(map(_stores_by_name, codes)):
            self._stored += map(hold, _all_leaves(met, places))


@once_per
def _names_gradients(code: CodeType) -> bool:
    """Also in functions inside of it. Code of others than torch that reads or stores under names which it is given may mean a gradient."""
    texts = {*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars, *_texts_in(code.co_consts)}
    words = (_NO_GRADIENTS.sub("", text).replace(".", "_") for text in texts)
    parts = {part for word in words if word.isidentifier() for part in word.split("_")}
    goes_by_name = not kind_of_file(code.co_filename) & TORCH and not texts.isdisjoint(_BY_NAME)
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    return goes_by_name or not parts.isdisjoint(_GRADIENTS) or any(map(_names_gradients, inner))


def _texts_in(constants: Iterable[Any]) -> Iterator[str]:
    for one in constants:
        if isinstance(one, str):
            yield one
        elif isinstance(one, (tuple, frozenset)):
            yield from _texts_in(one)


def _hides_names(value: Any) -> bool:
    """Whether calling it may do to a gradient what no code shows."""
    if isinstance(value, types.FunctionType):
        return (value.__module__ or "").startswith(_WORK_ON_THEM)
    return isinstance(value, _HIDE_NAMES) or (isinstance(value, types.GetSetDescriptorType) and value.__name__ == "grad")


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
