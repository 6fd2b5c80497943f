"""The last batch of an epoch is dropped, as DataLoader(drop_last=True) does."""
import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(4, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        h = self.hidden(x)
        return self.head(h.relu())


def program(device):
    data = torch.randn(11, 4, device=device)
    return Classifier().to(device), {"batches": [(part,) for part in data.split(4) if len(part) == 4]}
