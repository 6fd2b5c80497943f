"""AdamW with a warm-up: its step and its learning rate are numbers of the host."""
import torch
from torch import nn


class Trainer:
    def __init__(self, device):
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.model = nn.Sequential(layer, nn.Linear(8, 1)).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, weight_decay=0.1)
        self.scheduler = torch.optim.lr_scheduler.LinearLR(self.optimizer, 0.1, total_iters=100)

    def step(self, x):
        self.optimizer.zero_grad()
        self.model(x).square().mean().backward()
        self.optimizer.step()  # hazard: PG1001, PG301?


def program(device):
    trainer = Trainer(device)
    batches = [(torch.randn(2, 3, 8, device=device),) for _ in range(3)]
    return trainer.step, {"batches": batches, "between": trainer.scheduler.step}
