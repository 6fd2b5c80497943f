"""CTC loss takes lengths as tensors, and reads them on the host."""
import torch
from torch.nn import functional as F


def program(device):
    lengths, target_lengths = torch.tensor([5, 5], device=device), torch.tensor([2, 1], device=device)

    def step(logits, targets):
        log_probabilities = logits.log_softmax(-1)
        return F.ctc_loss(log_probabilities, targets, lengths, target_lengths)  # hazard: PG101|PG103@cuda, PG101|PG103@cpu?, PG202?

    batches = [(torch.randn(5, 2, 4, device=device), torch.randint(1, 4, (2, 2), device=device)) for _ in range(3)]
    return step, {"batches": batches}
