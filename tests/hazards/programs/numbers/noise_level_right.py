"""The standard deviation of the noise is a tensor."""
import torch


def program(device):
    sigma = torch.full((), 0.5, device=device)

    def explore(action):
        return action + torch.randn_like(action) * sigma

    def between():
        sigma.mul_(0.9)

    return explore, {"batches": [(torch.randn(2, 2, device=device),) for _ in range(3)], "between": between}
