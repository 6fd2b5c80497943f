"""A tensor where an operator takes a number (alpha) is read on the host."""
import torch


def program(device):
    momentum = torch.full((), 0.9, device=device)
    velocity = torch.zeros(4, device=device)

    def step(gradient):
        velocity.add_(gradient, alpha=momentum)  # hazard: PG101

    return step, {"batches": [(torch.randn(4, device=device),) for _ in range(3)]}
