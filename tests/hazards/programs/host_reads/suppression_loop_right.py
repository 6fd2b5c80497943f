"""Non-maximum suppression over a matrix of all pairs, one row after the other."""
import torch


def program(device):
    corner = torch.arange(4.0, device=device)[:, None] * 0.6
    boxes = torch.cat([corner, corner, corner + 1, corner + 1], dim=1)

    def suppress(scores):
        ranked = boxes[scores.argsort(descending=True)]
        low = torch.maximum(ranked[:, None, :2], ranked[None, :, :2])
        high = torch.minimum(ranked[:, None, 2:], ranked[None, :, 2:])
        size = (high - low).clamp_min(0)
        overlap = (size[..., 0] * size[..., 1]).triu(1) > 0.5
        keep = torch.ones(4, dtype=torch.bool, device=device)
        for row in range(4):
            keep = keep & ~(overlap[row] & keep[row])
        return ranked, keep

    return suppress, {"batches": [(torch.rand(4, device=device),) for _ in range(3)]}
