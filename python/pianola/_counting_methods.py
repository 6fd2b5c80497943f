"""Methods that count on the host, as those of moving averages do: `ema.update(model)`, `swa_model.update_parameters(model)`.

One that keeps its own count, in a number of Python or in a tensor of one number on the CPU, gives its operations other numbers at
each call. As a part of the host it runs again at each replay. It has to be one whose call can be made again: it returns nothing,
and is given modules, parameters and plain values alone.
"""

import dis
import inspect
import types
import weakref
from types import CodeType
from typing import Any, Callable, Iterator

import torch
from torch.optim import lr_scheduler, swa_utils

from ._audit.files import TORCH, kind_of_file
from ._audit.once import once_per
from ._host_places import GONE, SIMPLE, Place, Store, dictionary_of, held
from ._weak_references import Weak, weakly

# By classes, names of such methods. Those of others are found while a function warms up.
_methods: "weakref.WeakKeyDictionary[type, set[str]]" = weakref.WeakKeyDictionary()
_methods[swa_utils.AveragedModel] = {"update_parameters"}
# Codes that cannot run again, whatever they count.
_unfit: "weakref.WeakSet[CodeType]" = weakref.WeakSet()

_LASTING = (torch.nn.Module, torch.nn.Parameter)
_PARTS = (torch.optim.Optimizer, lr_scheduler.LRScheduler)  # which are parts themselves


def methods() -> Iterator[tuple[type, str]]:
    for kind, names in list(_methods.items()):
        for name in list(names):
            if isinstance(vars(kind).get(name), types.FunctionType):
                yield kind, name


def can_run_again(owner: Any, given: list[Any]) -> bool:
    """Whether such a call can be made again, later: nothing that it is given is of this call."""
    has_references = getattr(type(owner), "__weakrefoffset__", 0) != 0
    return has_references and all(isinstance(value, _LASTING) or type(value) in SIMPLE for value in given)


def forget(method: Callable[..., Any]) -> None:
    """It cannot run again after all."""
    code = _code_of(method)
    if code is not None:
        _unfit.add(code)
    for kind, name in list(methods()):
        if _code_of(vars(kind)[name]) is code:
            _methods[kind].discard(name)


class Counts:
    """The counts in tensors that objects keep, while a call runs their methods."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, CodeType], Any] = {}
        self._counts: list[tuple[weakref.ref, int, Any, CodeType]] = []

    def note(self, owner: Any, code: CodeType) -> None:
        """A method of `owner` begins."""
        known = self._seen.get((id(owner), code))
        if known is not None and held(known) is owner:
            return
        try:
            reference = self._seen[id(owner), code] = weakly(owner)
        except TypeError:  # of a class with slots
            return
        with torch._C.DisableTorchFunction():  # modes of the user's are not to see the questions
            for tensor in _counts_of(owner):
                self._counts.append((Weak(tensor), tensor._version, reference, code))

    def changed(self) -> Iterator[tuple[Any, CodeType]]:
        """Objects and the methods that ran, where a count is another one now."""
        for tensor, version, owner, code in self._counts:
            count, of = tensor(), held(owner)
            if count is None or of is GONE:
                continue
            with torch._C.DisableTorchFunction():
                is_changed = count._version != version
            if is_changed:
                yield of, code


def _counts_of(owner: Any) -> Iterator[torch.Tensor]:
    own = dictionary_of(owner) or {}
    buffers = own.get("_buffers", {}) if isinstance(owner, torch.nn.Module) else {}
    for value in [*own.values(), *buffers.values()]:
        if type(value) is torch.Tensor and value.dim() == 0 and value.is_cpu and not value.requires_grad:
            yield value


def learn(changed: list[Place], stores: list[Store], counts: Counts) -> bool:
    """Finds the methods that changed numbers of their objects. @return: Whether there is a new one."""
    found = [_learn(owner, code) for owner, code in counts.changed()]
    for place in changed:
        if place.kind in ("attribute", "slot") and isinstance(place.get(), (int, float)):
            found += _learn_from(place, stores)
    return any(found)


def _learn_from(place: Place, stores: list[Store]) -> Iterator[bool]:
    owner = place.owner
    by = {store.code for store in stores if store.key == place.key and held(store.owner) is owner}
    if by and all(_method_of(owner, code) for code in by):
        readers = {place.code} - by - {None}
        yield from [_learn(owner, code) for code in (*by, *readers) if code is not None]


def _learn(owner: Any, code: CodeType) -> bool:
    method = _method_of(owner, code)
    if method is None:
        return False
    kind, name = method
    names = _methods.setdefault(kind, set())
    is_new = name not in names
    names.add(name)
    return is_new


def _method_of(owner: Any, code: CodeType) -> Any:
    """The class and the name under which it has this code, if such a call can be made again."""
    if isinstance(owner, _PARTS) or code in _unfit or kind_of_file(code.co_filename) & TORCH or not _returns_nothing(code):
        return None
    for kind in type(owner).__mro__:
        if code.co_name in vars(kind):
            return (kind, code.co_name) if _code_of(vars(kind)[code.co_name]) is code else None
    return None


def _code_of(method: Any) -> Any:
    return getattr(inspect.unwrap(method), "__code__", None) if isinstance(method, types.FunctionType) else None


@once_per
def _returns_nothing(code: CodeType) -> bool:
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return False
    before = None
    for now in dis.get_instructions(code):
        if now.opname == "RETURN_CONST" and now.argval is not None:
            return False
        if now.opname == "RETURN_VALUE" and not (before is not None and before.opname == "LOAD_CONST" and before.argval is None):
            return False
        before = now
    return True
