"""torch.where with the condition alone is nonzero() by another name."""
import torch


def program(device):
    def peaks(signal):
        left, middle, right = signal[:-2], signal[1:-1], signal[2:]
        (places,) = torch.where((middle > left) & (middle > right))  # hazard: PG105
        return places + 1

    return peaks, {"batches": [(torch.randn(32, device=device),) for _ in range(3)]}
