"""`pianola.GradScaler`: torch.amp.GradScaler with nothing of it on the host."""

from typing import Any, Iterable, Optional, Union

import torch

from ._device import Device, as_device
from ._errors import refuse
from ._load import _C


class GradScaler(_C.GradScaler):
    """Scales losses so that small gradients survive float16, and skips steps whose gradients overflowed.

        scaler = pianola.GradScaler("cuda")
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)                     # only if gradients are read or clipped
        pianola.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    Equal to torch.amp.GradScaler with fused optimizers, bit for bit. Scale, growth and skipping are decided on the
    device, so that the whole step can be captured, and replays go on adapting the scale: capture the calls from
    unscale_() to update() together. An exception in between needs abandon_step() before the next step.

    Optimizers are those of pianola.optim; torch.amp.GradScaler is the one for torch.optim.

    Args:
        device: of the losses and parameters.
        init_scale, growth_factor, backoff_factor, growth_interval, enabled: as torch.amp.GradScaler.
    """

    def __init__(
        self,
        device: Device = "cuda",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        super().__init__(
            as_device(device),
            init_scale=init_scale,
            growth_factor=growth_factor,
            backoff_factor=backoff_factor,
            growth_interval=growth_interval,
            enabled=enabled,
        )

    def scale(self, outputs: Any) -> Any:
        """The outputs times the scale: a tensor, or tensors in lists and tuples."""
        if isinstance(outputs, torch.Tensor):
            return super().scale(outputs)
        if isinstance(outputs, Iterable) and not isinstance(outputs, (str, bytes, dict)):
            scaled = [self.scale(output) for output in outputs]
            return tuple(scaled) if isinstance(outputs, tuple) else scaled
        refuse(f"outputs to scale must be tensors in lists and tuples, got {type(outputs).__name__}")

    def unscale_(self, optimizer: "_C.Optimizer") -> None:
        """Divides the optimizer's gradients by the scale, in place, and notes on the device whether one is NaN or
        infinite."""
        _check_optimizer(optimizer, "unscale_")
        super().unscale_(optimizer)

    def step(self, optimizer: "_C.Optimizer") -> None:
        """The optimizer's step; changes nothing if a gradient is not finite."""
        _check_optimizer(optimizer, "step")
        super().step(optimizer)

    def update(self, new_scale: Optional[Union[float, torch.Tensor]] = None) -> None:
        """Adapts the scale after all optimizers' steps; or sets it."""
        if new_scale is None:
            super().update()
        else:
            super().update(new_scale)

    def get_scale(self) -> float:
        """The scale as a number; waits for the device."""
        return float(self.current_scale.item()) if self.is_enabled() else 1.0


def _check_optimizer(optimizer: Any, call: str) -> None:
    if isinstance(optimizer, _C.Optimizer):
        return
    kind = type(optimizer)
    if isinstance(optimizer, torch.optim.Optimizer):
        refuse(
            f"{call}() of a GradScaler was given {kind.__module__.split('.')[0]}'s {kind.__name__}, which does not "
            "take found_inf from it: steps with infinite gradients would not be skipped",
            fix="use the optimizer of that name in pianola.optim; or torch.amp.GradScaler, outside of captured steps",
        )
    refuse(f"{call}() of a GradScaler takes an optimizer of Pianola's, got {kind.__name__}")
