"""Hooks on tensors for a while, of which nothing is left behind.

A handle's remove() leaves an empty dictionary on the tensor, which for autograd, and for whoever asks whether a tensor has
hooks, is not the same as none.
"""

from typing import Any, Callable

import torch

from .._load import _C

_GRADIENT = "_backward_hooks"
_ACCUMULATION = "_post_accumulate_grad_hooks"


class TensorHooks:
    def __init__(self) -> None:
        self._handles: list[Any] = []
        self._without: list[tuple[torch.Tensor, str]] = []  # that had no dictionary of hooks

    def on_gradient(self, tensor: torch.Tensor, hook: Callable[[torch.Tensor], Any]) -> None:
        """Called with each gradient of it."""
        self._note(tensor, _GRADIENT)
        self._handles.append(tensor.register_hook(hook))

    def after_accumulation(self, leaf: torch.Tensor, hook: Callable[[torch.Tensor], Any]) -> None:
        """Called with the leaf when a gradient was added to `leaf.grad`."""
        self._note(leaf, _ACCUMULATION)
        self._handles.append(leaf.register_post_accumulate_grad_hook(hook))

    def _note(self, tensor: torch.Tensor, attribute: str) -> None:
        if getattr(tensor, attribute) is None:
            self._without.append((tensor, attribute))

    def remove(self) -> None:
        """Takes them away; tensors are as they were, but for hooks that somebody else put there meanwhile."""
        for handle in self._handles:
            handle.remove()
        for tensor, attribute in self._without:
            if not getattr(tensor, attribute):
                _C.drop_empty_hooks(tensor)
        self._handles.clear()
        self._without.clear()
