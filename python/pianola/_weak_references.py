"""Weak references to what a step meets, whatever that is."""

import weakref
from typing import Any

import torch


class Weak(weakref.ref):
    """One of ours: no value, and shared with nobody. Made by weakly()."""

    __slots__ = ()


def weakly(value: Any) -> Weak:
    """A stream of CUDA that ends does not tell its weak references (torch's THCPStream_dealloc), which then write into memory that is
    somebody else's. So it has none here.

    Raises:
        TypeError: there is no weak reference to it.
    """
    if isinstance(value, torch.Stream):
        raise TypeError(f"no weak reference to a {type(value).__qualname__}")
    return Weak(value)
