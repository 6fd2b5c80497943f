"""Graphs go before their process groups: a communicator that ends waits for the graphs that hold its collectives."""

import functools
import logging
from typing import Any, Callable

import torch.distributed

from ._errors import Error
from ._load import _C

_log = logging.getLogger("pianola")


def watch() -> None:
    """From now on, whoever ends a process group, by whatever function of torch, comes through here."""
    if not torch.distributed.is_available():
        return
    for name in ("shutdown", "abort"):
        end = getattr(torch.distributed.ProcessGroup, name, None)
        if end is not None:
            setattr(torch.distributed.ProcessGroup, name, _after_graphs(end))


def ranks() -> int:
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def groups_that_exist() -> tuple:
    """Another value after a process group was made or ended, also where one was made and has ended since."""
    if not torch.distributed.is_available():
        return ()
    world = torch.distributed.distributed_c10d._world
    return world.group_count, *map(id, world.pg_names)


def _after_graphs(end: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(end)
    def ends(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            _C.drop_graphs_of_group(self.group_name)
        except Error as error:  # another thread is in a replay, which hangs, perhaps
            _log.warning("a process group ends, and graphs that hold its collectives could not be dropped: %s", error)
        except RuntimeError as error:  # the group has no name
            _log.debug("%s", error)
        return end(self, *args, **kwargs)

    return ends
