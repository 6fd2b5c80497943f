"""The embedding's weight is also the head's."""
import torch
from torch import nn
from torch.nn import functional as F


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.norm = nn.RMSNorm(4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens, targets):
        logits = self.head(self.norm(self.embed(tokens)))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)


def program(device):
    model = Language().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(tokens, targets):
        loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    def batch():
        return torch.randint(0, 10, (2, 4), device=device), torch.randint(0, 10, (2, 4), device=device)

    return step, {"batches": [batch() for _ in range(3)]}
