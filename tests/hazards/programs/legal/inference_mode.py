"""Inference under inference_mode with a result in a static tensor."""
import torch
from torch import nn


def program(device):
    model = nn.Sequential(nn.Linear(4, 8), nn.Hardswish(), nn.Linear(8, 3)).to(device).eval().requires_grad_(False)
    classes = torch.zeros(5, dtype=torch.long, device=device)

    @torch.inference_mode()
    def predict(x):
        probabilities = model(x).softmax(-1)
        classes.copy_(probabilities.argmax(-1))
        return probabilities.amax(-1)

    return predict, {"batches": [(torch.randn(5, 4, device=device),) for _ in range(3)]}
