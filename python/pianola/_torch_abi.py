"""What differs between versions of torch, for the Python package. The library's part is the room pianola/torch_abi."""

import types
from typing import Any, Optional

import torch


def code_of(function: Any) -> Optional[types.CodeType]:
    """None where it is C's in this torch: no frame of Python's tells of it."""
    return getattr(getattr(function, "__func__", function), "__code__", None)


# A function of Python's in torch 2.11, C's in 2.15.
CODE_OF_APPLY = code_of(torch.autograd.Function.apply)


def function_of_apply(method: Any) -> Optional[type]:
    """The custom Function whose apply() it is, where that is C's."""
    owner = getattr(method, "__self__", None)
    is_apply = isinstance(method, types.BuiltinFunctionType) and method.__name__ == "apply"
    return owner if is_apply and isinstance(owner, type) and issubclass(owner, torch.autograd.Function) else None
