"""Non-maximum suppression in Python drops boxes with masks until none is left."""
import torch


def overlap(box, boxes):
    low, high = torch.maximum(box[:2], boxes[:, :2]), torch.minimum(box[2:], boxes[:, 2:])
    return (high - low).clamp_min(0).prod(-1)


def program(device):
    corner = torch.arange(4.0, device=device)[:, None] * 2
    boxes = torch.cat([corner, corner, corner + 1, corner + 1], dim=1)

    def suppress(scores):
        order, kept = scores.argsort(descending=True), []
        while order.numel() > 0:
            kept.append(order[0])
            rest = order[1:]
            order = rest[overlap(boxes[order[:1]][0], boxes[rest]) <= 0.5]  # hazard: PG106
        return torch.stack(kept)

    return suppress, {"batches": [(torch.rand(4, device=device),) for _ in range(3)]}
