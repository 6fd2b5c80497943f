"""The standard deviation of the noise is decayed by the training loop."""
import torch

sigma = 0.5


def program(device):
    def explore(action):
        return action + torch.normal(0.0, sigma, action.shape, device=device)  # hazard: PG301

    def between():
        global sigma
        sigma *= 0.9

    return explore, {"batches": [(torch.randn(2, 2, device=device),) for _ in range(3)], "between": between}
