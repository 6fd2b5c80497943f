"""The loop keeps the tensor that the step wrote last, not a copy of it."""
import torch
from torch import nn


class Predictor:
    def __init__(self, device):
        self.model = nn.Linear(4, 2).to(device).requires_grad_(False)
        self.result = None
        self.kept = []

    def predict(self, x):
        self.result = self.model(x)  # hazard: PG802?, PG901*
        return self.result

    def keep(self):
        self.kept.append(self.result)  # hazard: PG901*


def program(device):
    predictor = Predictor(device)
    # hazard: PG901*
    batches = [(torch.randn(3, 4, device=device),) for _ in range(3)]
    return predictor.predict, {"batches": batches, "between": predictor.keep}
