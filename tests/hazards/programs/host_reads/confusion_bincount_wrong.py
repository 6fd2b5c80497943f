"""bincount() reads the largest class on the host, also where minlength is given."""
import torch
from torch import nn

CLASSES = 3


def program(device):
    model = nn.Linear(4, CLASSES).to(device).requires_grad_(False)
    confusion = torch.zeros(CLASSES, CLASSES, dtype=torch.long, device=device)

    def evaluate(x, y):
        pair = y * CLASSES + model(x).argmax(-1)
        counts = torch.bincount(pair, minlength=CLASSES**2)  # hazard: PG101|PG105
        confusion.add_(counts.view(CLASSES, CLASSES))

    batches = [(torch.randn(6, 4, device=device), torch.randint(0, CLASSES, (6,), device=device)) for _ in range(3)]
    return evaluate, {"batches": batches}
