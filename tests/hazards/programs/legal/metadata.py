"""Shapes, strides, dtypes, devices and counts of elements are known on the host without asking the device."""
import torch


def program(device):
    def step(x):
        rows, columns = x.shape
        flat = x.reshape(-1) if x.is_contiguous() else x.flatten()
        assert flat.numel() == rows * columns and len(x) == rows and x.dim() == 2
        scale = 1.0 / max(x.size(0), x.stride(0))
        return (flat * scale).view(columns, rows).to(x.dtype), torch.finfo(x.dtype).eps

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}
