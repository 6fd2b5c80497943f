"""A two-layer LSTM over a whole sequence."""
import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(4, 4, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        y, _ = self.rnn(x)
        return self.head(y)


def program(device):
    return Tagger().to(device), {"batches": [(torch.randn(2, 3, 4, device=device),) for _ in range(3)]}
