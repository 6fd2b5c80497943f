"""What differs between versions of torch, for the Python package. The library's part is the room pianola/torch_abi."""

import types
from typing import Any, Optional

import torch

# torch.autograd.Function.apply: a function of Python's in 2.11, C's in 2.15, where no frame tells of it.
CODE_OF_APPLY: Optional[types.CodeType] = getattr(getattr(torch.autograd.Function.apply, "__func__", None), "__code__", None)


def function_of_apply(method: Any) -> Optional[type]:
    """The custom Function whose apply() it is, where that is C's."""
    owner = getattr(method, "__self__", None)
    is_apply = isinstance(method, types.BuiltinFunctionType) and method.__name__ == "apply"
    return owner if is_apply and isinstance(owner, type) and issubclass(owner, torch.autograd.Function) else None
