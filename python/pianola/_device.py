"""`pianola.default_device`, and devices as users name them."""

from typing import Union

import torch

from ._errors import refuse

Device = Union[torch.device, str, int, None]


def default_device() -> torch.device:
    """The current CUDA device where there is one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def as_device(device: Device) -> torch.device:
    """What the user named, or the default; "cuda" gets its index."""
    if device is None:
        return default_device()
    if not isinstance(device, (torch.device, str, int)):
        refuse(f"device must be a torch.device, or its name or index, got {device!r}")
    device = torch.device(device)
    if device.type == "cuda" and device.index is None and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return device
