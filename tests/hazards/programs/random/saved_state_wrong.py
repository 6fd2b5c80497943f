"""The step notes the state of the generator, to be able to repeat it."""
import torch
from torch import nn


def program(device):
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).to(device)
    read_state = torch.cuda.get_rng_state if torch.device(device).type == "cuda" else torch.get_rng_state

    @torch.no_grad()
    def step(x):
        state = read_state()  # hazard: PG603
        return model(x), state

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}
