"""Scatter, index_add, bucketize, searchsorted, cumsum and unfold have fixed shapes."""
import torch


def program(device):
    edges = torch.linspace(-2, 2, 5, device=device)
    histogram = torch.zeros(6, device=device)
    ones = torch.ones(8, device=device)

    def step(x):
        bucket = torch.bucketize(x, edges)
        histogram.index_add_(0, bucket, ones)
        place = torch.searchsorted(edges, x)
        smoothed = x.unfold(0, 3, 1).mean(-1)
        return torch.zeros(6, device=device).scatter_reduce(0, place, x, "amax"), smoothed.cumsum(0)

    return step, {"batches": [(torch.randn(8, device=device),) for _ in range(3)]}
