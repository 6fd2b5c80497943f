"""What optimizers, schedulers and scalers hold on the host, saved and put back."""

import collections
from typing import Any, Callable

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim import lr_scheduler

from ._host_places import dictionary_of

OWNERS = (torch.optim.Optimizer, lr_scheduler.LRScheduler, GradScaler)
_DICTIONARIES = (dict, collections.defaultdict, collections.OrderedDict, collections.Counter)
_CONTAINERS = (*_DICTIONARIES, list, set, collections.deque)


def save(owners: list[Any]) -> Callable[[], None]:
    """Saves the contents of their containers(). What is returned puts the same entries back into the same containers; what
    tensors hold is not its affair."""
    saved = containers(owners)

    def put_back() -> None:
        for container, entries in saved.values():
            container.clear()
            if isinstance(container, (dict, set)):
                container.update(entries)
            else:
                container.extend(entries)

    return put_back


def containers(owners: list[Any]) -> dict[int, tuple[Any, Any]]:
    """Where they keep what they count, by id, with the entries: their attributes (of those after the first one, where they are
    such owners), the containers that these lead to, and the same of those that they work on."""
    saved: dict[int, tuple[Any, Any]] = {}
    pending = list(owners)
    while pending:
        one = pending.pop()
        container: Any = dictionary_of(one) if one is owners[0] or isinstance(one, OWNERS) else one
        if type(container) not in _CONTAINERS or id(container) in saved:
            continue
        entries: Any = dict(container) if type(container) in _DICTIONARIES else list(container)
        saved[id(container)] = (container, entries)
        pending += entries.values() if isinstance(entries, dict) else entries
    return saved
