"""L-BFGS reads losses and directions on the host."""
import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 1).to(device)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=1)

    def step(x):
        def closure():
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)  # hazard: PG101|PG1001, PG102?, PG301?, PG901?

    # hazard: PG501?, PG503?, PG803?, PG801?, PG802?, PG401?
    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}
