"""The loop sets gradients to None outside the step, and the optimizer outside looks at new ones."""
import torch
from torch import nn


def program(device):
    model = nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def forward_backward(x):
        loss = model(x).square().mean()  # hazard: PG403*
        loss.backward()  # hazard: PG403*
        return loss.detach()

    def between():
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return forward_backward, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)], "between": between}
