"""Puts a graphed forward in the place of a module's own, and gives that back."""

from typing import Any

import torch


def _holder(module: torch.nn.Module) -> Any:
    """Who has the module's attributes: what torch.jit.trace returns is a shell around it."""
    return module.__dict__.get("_actual_script_module", module)


def replacement(module: torch.nn.Module) -> Any:
    """What stands in the place of the forward of the module's class; None for nothing."""
    return _holder(module).__dict__.get("forward")


def replace(module: torch.nn.Module, forward: Any) -> None:
    """Puts `forward` there."""
    _holder(module).forward = forward


def restore(module: torch.nn.Module, forward: Any) -> None:
    """Takes `forward` away again, unless something else stands there by now."""
    if replacement(module) is forward:
        del _holder(module).forward
