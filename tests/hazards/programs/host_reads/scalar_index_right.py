"""The index has one dimension, or goes through index_select: it is a gather on the device."""
import torch


def program(device):
    schedule = torch.linspace(0.1, 1.0, 10, device=device)
    timestep = torch.zeros(1, dtype=torch.long, device=device)

    def between():
        timestep.add_(1)

    def denoise(x):
        alpha = schedule[timestep]
        return x * alpha

    return denoise, {"batches": [(torch.randn(3, device=device),) for _ in range(3)], "between": between}
