"""torch.cuda.graph as its documentation has users do it: static buffers, warm-up on a side stream, one capture, replays.

The edits that it asks for are made here, so that the step can stay as it is: optimizers are capturable, batches lie on the device,
schedulers step after the replay, and what is read at the end is read after it.
"""

import functools
from unittest import mock

import torch
from torch.utils import _pytree

WARMUP = 3


def make_capturable(state):
    """Before the first step."""
    for held in state:
        for group in held.param_groups if isinstance(held, torch.optim.Optimizer) else ():
            if "capturable" in group:
                group["capturable"] = True


class _ReadLater:
    """What item() gives while the step is captured."""

    def __init__(self, tensor):
        self.tensor = tensor


class ByHand:
    """The decorator. `state` is to hold the program's when the step is captured."""

    def __init__(self, device):
        self.device = device
        self.state = ()

    def __call__(self, target):
        if isinstance(target, torch.nn.Module):
            target.forward = _Captured(target.forward, self)
            return target
        captured = _Captured(target, self)
        return functools.wraps(target)(lambda *args, **kwargs: captured(*args, **kwargs))


class _Captured:
    def __init__(self, function, owner):
        self.function = function
        self.owner = owner
        self.calls = 0
        self.graph = None
        self.stream = torch.cuda.Stream()

    def __call__(self, *args, **kwargs):
        leaves, structure = _pytree.tree_flatten((args, kwargs))
        if self.calls == 0:
            device = self.owner.device
            self.inputs = [leaf.to(device, copy=True) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self.calls += 1
        self._fill(leaves)
        if self.calls <= WARMUP:
            return self._warm_up(structure)
        if self.graph is None:
            self._capture(structure)
        self.graph.replay()
        for scheduler in self.schedulers:
            scheduler.step()
        return _pytree.tree_map(lambda leaf: leaf.tensor.item() if isinstance(leaf, _ReadLater) else leaf, self.result)

    def _fill(self, leaves):
        for held, leaf in zip(self.inputs, leaves, strict=True):
            if isinstance(leaf, torch.Tensor):
                held.copy_(leaf, non_blocking=True)
            elif held is not leaf and held != leaf:
                raise RuntimeError(f"an argument is {leaf!r} and was {held!r}: the graph holds the first for ever")

    def _run(self, structure):
        args, kwargs = _pytree.tree_unflatten(self.inputs, structure)
        return self.function(*args, **kwargs)

    def _warm_up(self, structure):
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            result = self._run(structure)
        torch.cuda.current_stream().wait_stream(self.stream)
        return result

    def _capture(self, structure):
        self.schedulers = [held for held in self.owner.state if isinstance(held, torch.optim.lr_scheduler.LRScheduler)]
        graph, stepped = torch.cuda.CUDAGraph(), []
        with mock.patch.object(torch.Tensor, "item", lambda tensor: _ReadLater(tensor)):
            for scheduler in self.schedulers:
                scheduler.step = functools.partial(stepped.append, scheduler)
            try:
                with torch.cuda.graph(graph):
                    self.result = self._run(structure)
            finally:
                for scheduler in self.schedulers:
                    del scheduler.step
        self.schedulers = stepped
        self.graph = graph
