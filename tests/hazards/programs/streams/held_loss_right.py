"""A loss of the default stream is still held: the capture gives the parameters new nodes for their gradients."""
import torch
from torch import nn

CUDA_ONLY = True


def program(device):
    model = nn.Linear(4, 1).to(device)
    first_loss = model(torch.randn(3, 4, device=device)).mean()
    first_loss.backward(retain_graph=True)

    def step(x):
        model.zero_grad(set_to_none=False)
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach(), first_loss.detach()

  
    return step, {"batches": [(torch.randn(3, 4, device=device),) for _ in range(3)]}
