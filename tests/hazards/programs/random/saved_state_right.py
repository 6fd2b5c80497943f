"""The loop notes the state of the generator between the steps."""
import torch
from torch import nn


def program(device):
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).to(device)
    read_state = torch.cuda.get_rng_state if torch.device(device).type == "cuda" else torch.get_rng_state
    states = []

    @torch.no_grad()
    def step(x):
        return model(x)

    def between():
        states.append(read_state())

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)], "between": between}
