"""Weak references to what a step meets, whatever that is."""

import weakref
from typing import Any

import torch


_UNSAFE = (torch.Stream, torch.Event)


class Weak(weakref.ref):
    """One of ours: no value, and shared with nobody. Made by weakly()."""

    __slots__ = ()


def may_be_weak(value: Any) -> bool:
    """A stream or an event of CUDA that ends does not tell its weak references (torch's THCPStream_dealloc, THCPEvent_dealloc), which
    then write into memory that is somebody else's."""
    return not isinstance(value, _UNSAFE)


def weakly(value: Any) -> Weak:
    """Raises:
        TypeError: there is no weak reference to it.
    """
    if not may_be_weak(value):
        raise TypeError(f"no weak reference to a {type(value).__qualname__}")
    return Weak(value)
