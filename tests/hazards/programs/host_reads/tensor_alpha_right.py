"""The tensor is a factor."""
import torch


def program(device):
    momentum = torch.full((), 0.9, device=device)
    velocity = torch.zeros(4, device=device)

    def step(gradient):
        velocity.add_(gradient * momentum)

    return step, {"batches": [(torch.randn(4, device=device),) for _ in range(3)]}
