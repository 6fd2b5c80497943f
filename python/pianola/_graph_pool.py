"""Memory pools: named as torch names them, so that handles from either side can be passed to the other."""

import contextlib
from collections.abc import Iterator
from typing import Any, Optional

from ._device import Device, as_device
from ._errors import refuse
from ._load import _C
from ._uncopied import Uncopied


class GraphPool(Uncopied, _C.GraphPool):
    """Memory that several graphs share. `id` is torch's name for it; `bytes()` what it holds.

    Graphs of one pool may be replayed in any harmless order. A replay raises ReplayError if it would read a result of
    another graph that a later replay has overwritten.

    A pool that `can_sleep` gives its memory back to the driver between `suspend()` and `resume()`, so that others can use it: its graphs
    stay, at the addresses that they were captured with. What tensors hold of it (results above all) is kept in pinned memory of the host,
    scratch is dropped. Nobody may read these tensors meanwhile: on CUDA their memory is not there. Replays and captures are refused.
    Tensors from outside of the pool stay where they are: a graph whose tensor got other memory meanwhile names it and refuses to replay.

        pool = pianola.GraphPool("cuda", can_sleep=True)
        train = pianola.FullIteration(train_step, pool=pool)
        ...
        with pool.suspended():
            generate()

    The executables of its graphs are memory of the driver's, and stay: with `suspend(keep_executables=False)` they go, too, and
    `resume()` makes them again from the captured graphs. `graph.memory()` says what they take. Where graphs of the pool communicate, all
    ranks suspend and resume it at the same point, as in a collective: where one cannot, none does, and each raises what that one says.

    A pool with `plan_memory` has every capture plan its memory, and all of them in one region: buckets of a length, training and
    evaluation and whatever else never runs at once take what the largest takes, in whichever order they are captured. A result that
    somebody holds stays where it is, and later graphs lie around it: let the graph copy what you keep into a tensor of your own.

        pool = pianola.GraphPool("cuda", plan_memory=True)
        for length, graph in graphs.items():
            graph.capture(functools.partial(step, length), pool=pool)

    Graphs of a pool with `share_executables` that are alike, as those of equal layers are, have one executable together, where each has
    one of its own else, which takes memory of the driver's for each node. `graph.info().shares_executable` tells whether it does.

    Args:
        device: where it lies; None: the current GPU, or the CPU where there is none.
        can_sleep: lets `suspend()` be called. Other GPUs and processes cannot read the pool's memory then.
        plan_memory: as for pianola.Graph.capture, of all captures into it. Nor can others read its memory then. Callables, and calls of
            `graphed` whose backward pass runs outside, are not planned.
        share_executables: a replay that follows one of another graph gives the executable its own parameters first, which costs time on
            the host for each node. Graphs that communicate, have lanes, numbers or parts that stay eager keep their own. Nothing on the CPU.
    """

    _copied_instead = "make another pool, and capture into that"

    def __init__(
        self, device: Device = None, *, can_sleep: bool = False, plan_memory: bool = False, share_executables: bool = False
    ) -> None:
        super().__init__(as_device(device), can_sleep, plan_memory, share_executables)

    @contextlib.contextmanager
    def suspended(self, *, keep_executables: bool = True) -> Iterator[int]:
        """Suspended inside of the `with`, as by `suspend()`, which gives the bytes that went back to the driver.

        Afterwards it is as it was: a pool that slept before, in another `with` around this one, sleeps on. On CUDA no thread may capture
        where it begins; where it ends others may, but for a capture of this thread that is open still.
        """
        was_asleep = self.is_asleep
        given_back = self.suspend(keep_executables=keep_executables)
        try:
            yield given_back
        finally:
            if not was_asleep:
                self.resume()

    @contextlib.contextmanager
    def allocations(self) -> Iterator[None]:
        """What this thread allocates on the device inside of the `with` lies in the pool, and sleeps with it.

            with pool.allocations():
                model = Model().cuda()
                optimizer = torch.optim.AdamW(model.parameters())
                train_step(batch)  # makes the optimizer's state

        On resume it is as it was, at the same addresses. What autograd's threads allocate, such as gradients, lies outside. Nothing on the
        CPU. Captures are refused inside.

        Raises:
            UsageError: the pool sleeps, somebody captures into it, or a capture is open on this thread.
        """
        allocations = _C.PoolAllocations(self)
        try:
            yield
        finally:
            del allocations


class GraphPoolFamily(Uncopied, _C.GraphPoolFamily):
    """Pools for the graphs of functions that never run at once, such as a model's layers: `graphed(..., pool=family)`.

    Their graphs run one after the other, also on several streams, and share cuBLAS's workspaces: most of the memory of a small graph.
    `graph_layers` makes one for the layers of a model.
    """

    _copied_instead = "make another family"


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
    if not (isinstance(name, tuple) and len(name) == 2 and all(isinstance(part, int) and part >= 0 for part in name)):
        refuse(
            f"pool is {pool!r}, which names no memory pool",
            "pass what graph_pool_handle() or a graph's pool() returned, a pianola.GraphPool, or a torch.cuda.MemPool",
        )
    return tuple(name)


def pool_to_capture_into(pool: Any, taker: str) -> "Optional[_C.GraphPool]":
    """A pool for graphs that `taker` makes by itself, which hold on to it by more than its name; None for None."""
    if pool is None or isinstance(pool, _C.GraphPool):
        return pool
    what = "its name" if isinstance(pool, tuple) else f"{pool!r}"
    refuse(f"{taker} needs a pianola.GraphPool, not {what}", "pass pool=pianola.GraphPool(device)")
