"""The peaks are marked by a mask of fixed size."""
import torch


def program(device):
    def peaks(signal):
        left, middle, right = signal[:-2], signal[1:-1], signal[2:]
        return torch.where((middle > left) & (middle > right), middle, float("-inf"))

    return peaks, {"batches": [(torch.randn(32, device=device),) for _ in range(3)]}
