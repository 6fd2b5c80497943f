"""Batches are dictionaries, as tokenizers make them, and the result is one, too."""
import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, batch):
        mask = batch["attention_mask"].unsqueeze(-1)
        pooled = (self.embed(batch["input_ids"]) * mask).sum(1) / mask.sum(1)
        logits = self.head(pooled)
        return {"loss": nn.functional.cross_entropy(logits, batch["labels"]), "logits": logits}


def program(device):
    def batch():
        return {
            "input_ids": torch.randint(0, 12, (2, 5), device=device),
            "attention_mask": torch.ones(2, 5, device=device),
            "labels": torch.randint(0, 3, (2,), device=device),
        }

    return Classifier().to(device).requires_grad_(False), {"batches": [(batch(),) for _ in range(3)]}
