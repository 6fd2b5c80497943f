"""load_state_dict(assign=True) replaces parameters instead of filling them."""
import torch
from torch import nn


def program(device):
    online = nn.Linear(4, 2).to(device)
    target = nn.Linear(4, 2).to(device)

    @torch.no_grad()
    def step(x):
        return target(x).amax(-1)  # hazard: PG402

    def refresh_target():
        state = {name: value.clone() for name, value in online.state_dict().items()}
        target.load_state_dict(state, assign=True)

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)], "between": refresh_target}
