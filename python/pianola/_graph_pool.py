"""Memory pools: named as torch names them, so that handles from either side can be passed to the other."""

from typing import Any, Optional

from ._device import Device, as_device
from ._errors import refuse
from ._load import _C


class GraphPool(_C.GraphPool):
    """Memory that several graphs share. `id` is torch's name for it; `bytes()` what it holds.

    Graphs of one pool may be replayed in any harmless order. A replay raises ReplayError if it would read a result of
    another graph that a later replay has overwritten.
    """

    def __init__(self, device: Device = None) -> None:
        super().__init__(as_device(device))


class GraphPoolFamily(_C.GraphPoolFamily):
    """Pools for the graphs of functions that never run at once, such as a model's layers: `graphed(..., pool=family)`.

    Their graphs run one after the other, also on several streams, and share cuBLAS's workspaces: most of the memory of a small graph.
    `graph_layers` makes one for the layers of a model.
    """


def graph_pool_handle() -> tuple[int, int]:
    """A name for a new pool, as torch.cuda.graph_pool_handle() makes them; works without a GPU."""
    return _C.new_pool_id()


def pool_id(pool: Any) -> Optional[tuple[int, int]]:
    """The name of a pool, from a name, a GraphPool, a torch.cuda.MemPool or a graph; None for None."""
    if pool is None:
        return None
    name = getattr(pool, "id", pool)
    if name is pool and callable(getattr(pool, "pool", None)):
        name = pool.pool()
    if not (isinstance(name, tuple) and len(name) == 2 and all(isinstance(part, int) for part in name)):
        refuse(
            f"pool is {pool!r}, which names no memory pool",
            "pass what graph_pool_handle() or a graph's pool() returned, a pianola.GraphPool, or a torch.cuda.MemPool",
        )
    return tuple(name)
