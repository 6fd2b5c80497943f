"""Storages that a step resizes, as FSDP2 does with those of its gathered parameters: a recording has to see it."""

import functools
import sys

import torch

from ._load import _C


def watch() -> None:
    """From now on, who resizes a storage comes through here."""
    resize = torch.UntypedStorage.resize_

    @functools.wraps(resize)
    def resizes(self: torch.UntypedStorage, nbytes: int) -> torch.UntypedStorage:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        return self if _C.resize_by_operator(self, nbytes, caller.startswith("torch.distributed.fsdp.")) else resize(self, nbytes)

    torch.UntypedStorage.resize_ = resizes  # type: ignore[method-assign, assignment]
