"""What users hang onto a CUDAGraph, as in torch from 2.14 on: hooks at moments of its life, and what a capture keeps alive."""

import contextlib
import weakref
from collections import OrderedDict
from typing import Any, Callable, Optional

from torch.utils.hooks import RemovableHandle

from ._stream import AnyStream
from ._torch_abi import hooks_of_all_graphs

Hook = Callable[[Any], None]


def _put(table: "OrderedDict[int, Any]", one: Any) -> RemovableHandle:
    handle = RemovableHandle(table)
    table[handle.id] = one
    return handle


class Hooks:
    """Hooks of one moment: those that torch.cuda.graphs was given for all graphs, and those of one graph behind them."""

    def __init__(self, moment: str) -> None:
        self.of_all = hooks_of_all_graphs(moment)
        self.own: OrderedDict[int, Hook] = OrderedDict()

    def add(self, hook: Hook) -> RemovableHandle:
        return _put(self.own, hook)

    def __bool__(self) -> bool:
        return bool(self.own or self.of_all)

    def run(self, graph: Any) -> None:
        """As in torch, an error of a hook for all graphs is dropped, and one of the graph's own comes out."""
        for hook in list(self.of_all.values()):
            with contextlib.suppress(Exception):
                hook(graph)
        for hook in list(self.own.values()):
            hook(graph)


class Kept:
    """What lasts as long as a capture. Does not know the graph: the graph's finalizer holds it, and would hold the graph."""

    def __init__(self) -> None:
        self.callbacks: OrderedDict[int, Callable[[], None]] = OrderedDict()
        self.objects: OrderedDict[int, Any] = OrderedDict()
        self.streams: Optional[set[AnyStream]] = None  # of replays; None: nobody wants to wait for them
        self._of_all = hooks_of_all_graphs("destroy")

    def wait_for_replays(self, wait: bool) -> None:
        if wait and self.streams is None:
            self.streams = set()

    def release(self) -> None:
        """As in torch, errors are dropped: there is nobody to tell."""
        for stream in self.streams or ():
            with contextlib.suppress(Exception):
                stream.synchronize()
        for hook in list(self._of_all.values()):
            with contextlib.suppress(Exception):
                hook(set())  # ids of graphs with annotations, of which Pianola makes none
        for callback in list(self.callbacks.values()):
            with contextlib.suppress(Exception):
                callback()
        self.callbacks.clear()
        self.objects.clear()


class HookedGraph:
    """The methods for it. Hooks that torch.cuda.graphs was given for all graphs (register_graph_replay_start_hook) run too."""

    def __init__(self) -> None:
        self._at_capture_start, self._at_capture_end = Hooks("capture_start"), Hooks("capture_end")
        self._at_instantiate = Hooks("instantiate")
        self._at_replay_start, self._at_replay_end = Hooks("replay_start"), Hooks("replay_end")
        self._keep_anew()

    def _keep_anew(self) -> None:
        self._kept = Kept()
        self._finalizer = weakref.finalize(self, self._kept.release)

    def _release_kept(self) -> None:
        self._finalizer()
        self._keep_anew()

    def register_capture_start_hook(self, hook: Hook) -> RemovableHandle:
        """`hook(graph)` runs when a capture has begun; what it computes is captured. As all hooks here: in the order of
        registration, until `remove()` of the handle."""
        return self._at_capture_start.add(hook)

    def register_capture_end_hook(self, hook: Hook) -> RemovableHandle:
        """`hook(graph)` runs when a capture has ended, and may change what raw_cuda_graph() gives. If it raises, the capture
        is dropped."""
        return self._at_capture_end.add(hook)

    def register_post_instantiate_hook(self, hook: Hook) -> RemovableHandle:
        """`hook(graph)` runs when an executable has been made, which raw_cuda_graph_exec() gives."""
        return self._at_instantiate.add(hook)

    def register_replay_start_hook(self, hook: Hook) -> RemovableHandle:
        """`hook(graph)` runs before each launch; if it raises, nothing is launched."""
        return self._at_replay_start.add(hook)

    def register_replay_end_hook(self, hook: Hook) -> RemovableHandle:
        """`hook(graph)` runs behind each launch, also behind one that failed. On CUDA the work may still be under way."""
        return self._at_replay_end.add(hook)

    def register_destroy_callback(
        self, cb: Callable[[], None], *, synchronize_before_release: bool = False
    ) -> RemovableHandle:
        """`cb()` runs once, when the graph is dropped or reset(), just before its memory is. It must not refer to the graph,
        which then would never be dropped. `synchronize_before_release`: wait for the replays made from now on first."""
        self._kept.wait_for_replays(synchronize_before_release)
        return _put(self._kept.callbacks, cb)

    def retain_object(self, obj: object, *, synchronize_before_release: bool = False) -> RemovableHandle:
        """Keeps `obj` until the graph is dropped or reset(); for the rest as register_destroy_callback()."""
        self._kept.wait_for_replays(synchronize_before_release)
        return _put(self._kept.objects, obj)
