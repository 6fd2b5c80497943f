"""One-hot vectors by comparison with a range, and a sum over classes by matrix product."""
import torch


def program(device):
    classes = torch.arange(4, device=device)

    def step(features, y):
        one_hot = (y[:, None] == classes).to(features.dtype)
        return one_hot.T @ features / one_hot.sum(0).clamp_min(1)[:, None]

    batches = [(torch.randn(6, 3, device=device), torch.randint(0, 4, (6,), device=device)) for _ in range(3)]
    return step, {"batches": batches}
