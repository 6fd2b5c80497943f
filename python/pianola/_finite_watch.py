"""`pianola.FiniteWatch`: NaN and infinity found on the device, told a step later."""

from typing import Any, Mapping, Optional, Union

import torch

from ._device import Device, as_device
from ._errors import refuse
from ._load import _C


class FiniteWatch(_C.FiniteWatch):
    """Finds NaN and infinity in losses and gradients without a host synchronization.

        watch = pianola.FiniteWatch("cuda")

        def step():
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            watch.check("loss", loss)
            watch.check_gradients(model.named_parameters())
            optimizer.step()
            watch.end_step()

        for batch in loader:
            step()                  # or its replay
            watch.poll()            # NonFiniteError: 'loss' is NaN in step 7
        watch.wait()

    poll() raises one step after the bad one at the earliest, and never waits while all is well. The calls in the step may be
    captured, in any number of graphs. After an exception between check() and end_step(), call abandon_step().

    Args:
        device: where the checked tensors are.
        gradients: off if a GradScaler is on, which handles gradients that overflow.
        max_tensors: how many tensors may be checked, those of all different steps together; 4 bytes each.
    """

    def __init__(self, device: Device = "cuda", *, gradients: bool = True, max_tensors: int = 16384) -> None:
        super().__init__(as_device(device), gradients=gradients, max_tensors=max_tensors)

    def check(self, name: Union[str, Mapping[str, torch.Tensor]], tensor: Optional[torch.Tensor] = None) -> None:
        """Checks one tensor of any shape and floating-point dtype, or a dictionary of them. A float32 scalar is read in
        found_inf() or end_step(), and must not be changed in place before."""
        if not isinstance(name, str):
            self.check_all(list(name.items()))
        elif isinstance(tensor, torch.Tensor):
            super().check(name, tensor)
        else:
            refuse(f"{name!r} to check must be a tensor, got {type(tensor).__name__}")

    def check_gradients(self, parameters: Any) -> None:
        """Checks the gradients of those parameters that have one.

        Args:
            parameters: a module, its named_parameters(), or parameters, which are named by number.
        """
        super().check_gradients(named_parameters(parameters))


def named_parameters(parameters: Any) -> list[tuple[str, torch.Tensor]]:
    """Names and tensors of a module, of pairs, of tensors, or of one tensor."""
    if isinstance(parameters, torch.nn.Module):
        return list(parameters.named_parameters())
    if isinstance(parameters, _C.Optimizer):
        parameters = parameters.parameters()
    elif isinstance(parameters, torch.Tensor):
        parameters = [parameters]
    return [
        (f"parameter {number}", given) if isinstance(given, torch.Tensor) else given
        for number, given in enumerate(parameters)
    ]
