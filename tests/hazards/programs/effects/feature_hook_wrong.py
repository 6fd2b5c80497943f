"""A forward hook collects features in a list."""
import torch
from torch import nn


class Features:
    def __init__(self, layer):
        self.collected = []
        layer.register_forward_hook(self.collect)  # hazard: PG1004?

    def collect(self, module, inputs, output):
        self.collected.append(output.detach())  # hazard: PG801*, PG901?, PG1004?


def program(device):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).to(device)
    features = Features(model[0])

    def step(x):
        with torch.no_grad():
            return model(x), len(features.collected)  # hazard: PG801*, PG901?, PG1004?

    # hazard: PG1004?
    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}
