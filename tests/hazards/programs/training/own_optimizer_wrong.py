"""An optimizer of one's own keeps its step count in its state, as a number."""
import torch
from torch import nn


class DecayedSGD(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["step"] = state.get("step", 0) + 1  # hazard: PG803|PG1001?
                p.add_(p.grad, alpha=-group["lr"] / state["step"])  # hazard: PG301|PG1001


def program(device):
    model = nn.Linear(4, 1, bias=False).to(device)
    optimizer = DecayedSGD(model.parameters(), lr=0.1)

    def train_step(x):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()  # hazard: PG803|PG1001?

    return train_step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}
