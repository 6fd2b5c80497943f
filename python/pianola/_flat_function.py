"""A Python callable as the C++ library calls it: tensors in, tensors out."""

from typing import Any, Callable, Optional

import torch

from . import _recording
from ._device import default_device
from ._errors import refuse
from ._kept_tensors import Kept, KeptStructure
from ._late_reads import apart
from ._structure import Structure


class FlatFunction:
    """Runs a callable on the arguments of one structure; `outputs` is the structure of what it returned.

    Raises, when called:
        UsageError: it returns something else than in an earlier run, apart from the values of tensors.
    """

    def __init__(self, function: Callable[..., Any], inputs: Structure, name: str = "the callable") -> None:
        self.function = function
        self.inputs = inputs
        self.name = name
        self.outputs: Optional[Structure] = None
        self.unchanging: Any = None  # the leaves, where replays return the same ones each time

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        args, kwargs = self.inputs.rebuild(tensors)
        return self.run(tensors[0].device if tensors else default_device(), args, kwargs)

    def run(self, device: torch.device, args: Any, kwargs: Any) -> list[torch.Tensor]:
        with _recording.scope(device):
            result = self.function(*args, **kwargs)
        leaves, structure = apart(result.result if type(result) is Kept else result)
        if type(result) is Kept:
            structure = KeptStructure(structure, len(leaves), result.stores)
            leaves = [*leaves, *result.tensors]
        if self.outputs is not None and not self.outputs.same(structure):
            refuse(
                f"{self.name} returns something else in each run; {self.outputs.difference(structure)}",
                "return tensors, or values that stay the same: a graph freezes everything but tensors",
            )
        self.outputs = structure
        return leaves

    def rebuild(self, leaves: tuple[torch.Tensor, ...], numbers: tuple = ()) -> Any:
        """The callable's result, from its tensors and the numbers among the call's arguments that are followed."""
        assert self.outputs is not None
        return self.outputs.rebuild(leaves, numbers)
