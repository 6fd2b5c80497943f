"""`pianola.clip_grad_norm_` and `pianola.clip_grad_value_`: torch's functions, of which the host reads nothing."""

from typing import Any, Iterable, Optional, Union

import torch

from ._errors import refuse
from ._finite_watch import FiniteWatch, named_parameters
from ._load import _C


def clip_grad_norm_(
    parameters: Any,
    max_norm: float,
    norm_type: Union[float, str] = 2.0,
    error_if_nonfinite: Union[bool, FiniteWatch] = False,
) -> torch.Tensor:
    """Scales the gradients of the parameters, in place, so that their norm over all of them is at most `max_norm`: as
    torch.nn.utils.clip_grad_norm_ with foreach=True, bit for bit.

    Args:
        parameters: a module, its parameters() or named_parameters(), an optimizer, or one tensor.
        norm_type: p of the p-norm; "inf" for the largest absolute value.
        error_if_nonfinite: a FiniteWatch, which stops training a step later if a norm is NaN or infinite.

    Returns the norm before, a tensor.
    """
    named = named_parameters(parameters)
    tensors, names = [tensor for _, tensor in named], [name for name, _ in named]
    return _C.clip_grad_norm_(tensors, max_norm, float(norm_type), _watch(error_if_nonfinite), names)


def clip_gradients_norm_(
    gradients: Iterable[torch.Tensor],
    max_norm: float,
    norm_type: Union[float, str] = 2.0,
    error_if_nonfinite: Union[bool, FiniteWatch] = False,
) -> torch.Tensor:
    """The same for gradients themselves, as torch.autograd.grad returns them."""
    return _C.clip_gradients_norm_(list(gradients), max_norm, float(norm_type), _watch(error_if_nonfinite), [])


def clip_grad_value_(parameters: Any, clip_value: float) -> None:
    """Brings each element of the parameters' gradients into [-clip_value, clip_value], in place: as
    torch.nn.utils.clip_grad_value_ with foreach=True, bit for bit."""
    _C.clip_grad_value_([tensor for _, tensor in named_parameters(parameters)], clip_value)


def _watch(error_if_nonfinite: Any) -> Optional[FiniteWatch]:
    if error_if_nonfinite is None or error_if_nonfinite is False:
        return None
    if isinstance(error_if_nonfinite, FiniteWatch):
        return error_if_nonfinite
    refuse(
        f"error_if_nonfinite must be False or a FiniteWatch, got {error_if_nonfinite!r}: the host reads no norm",
        fix="make a pianola.FiniteWatch, pass it here, and call its poll() after each step",
    )
