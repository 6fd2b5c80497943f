"""multinomial() checks its input on the device."""
import torch
from torch import nn


def program(device):
    model = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 16)).to(device).requires_grad_(False)

    def sample(tokens):
        probabilities = model(tokens).softmax(-1)
        return torch.multinomial(probabilities, num_samples=1)

    return sample, {"batches": [(torch.randint(0, 16, (3,), device=device),) for _ in range(3)]}
