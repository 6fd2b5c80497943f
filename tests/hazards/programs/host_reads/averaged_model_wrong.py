"""AveragedModel asks on the host whether it has averaged before."""
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel


def program(device):
    model = nn.Linear(4, 2).to(device)
    averaged = AveragedModel(model)

    def step(x):
        model.zero_grad()
        model(x).square().mean().backward()
        averaged.update_parameters(model)  # hazard: PG101|PG102|PG1001, PG501?, PG202?, PG201?, PG301?

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}
