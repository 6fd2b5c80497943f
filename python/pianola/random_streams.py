"""`pianola.RngTracker`: streams of random numbers by name."""

from ._load import _C
from .devices import Device, as_device


class RngTracker(_C.RngTracker):
    """Streams of random numbers by name, beside the device's default one: dropout that differs between the ranks of a
    tensor-parallel group beside dropout that is the same on all of them.

        tracker = pianola.RngTracker("cuda")
        tracker.add("model-parallel", seed + rank)
        with tracker.fork("model-parallel"):
            x = torch.nn.functional.dropout(x, 0.1)   # draws from that stream

    A fork may stand inside a captured step: replays draw from the named stream and advance it, as eager runs do. Captures
    have to know the streams: pass generators=tracker.generators().

    Args:
        device: None: the current CUDA device where there is one, else the CPU.
    """

    def __init__(self, device: Device = None) -> None:
        super().__init__(as_device(device))
