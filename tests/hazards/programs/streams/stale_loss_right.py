"""Only the value of the first loss is held."""
import torch
from torch import nn

CUDA_ONLY = True


def program(device):
    model = nn.Linear(4, 1).to(device)
    loss = model(torch.randn(3, 4, device=device)).mean()
    loss.backward()
    first_loss = loss.detach()
    del loss

    def step(x):
        model.zero_grad(set_to_none=False)
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach(), first_loss * 1

    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}
