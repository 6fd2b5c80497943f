"""Settings that a step enters around its parts."""

import contextlib

import torch


@contextlib.contextmanager
def double_precision():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)
