"""What decides, at the place of a call, which operations a call of torch runs; and to be there again."""

import contextlib
from typing import Iterator

import torch


def modes() -> tuple:
    """Those of this thread now: gradients, inference, default type, autocast."""
    casts = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")]
    settings = torch.is_inference_mode_enabled(), torch.get_default_dtype(), torch.is_autocast_cache_enabled()
    return torch.is_grad_enabled(), *settings, *casts


@contextlib.contextmanager
def as_in(wanted: tuple) -> Iterator[None]:
    """While it lasts, the modes are those; what differs from them is changed alone."""
    grad, inference, dtype, keeps_casts, *casts = wanted
    with contextlib.ExitStack() as entered:
        if inference != torch.is_inference_mode_enabled():
            entered.enter_context(torch.inference_mode(inference))
        if grad != torch.is_grad_enabled():
            entered.enter_context(torch.set_grad_enabled(grad))
        if dtype != torch.get_default_dtype():
            entered.callback(torch.set_default_dtype, torch.get_default_dtype())
            torch.set_default_dtype(dtype)
        for (kind, enabled, cast), now in zip(casts, modes()[4:]):
            if (kind, enabled, cast) != now:
                entered.enter_context(torch.autocast(kind, dtype=cast, enabled=enabled, cache_enabled=keeps_casts))
        if keeps_casts != torch.is_autocast_cache_enabled():
            entered.callback(torch.set_autocast_cache_enabled, torch.is_autocast_cache_enabled())
            torch.set_autocast_cache_enabled(keeps_casts)
        yield
