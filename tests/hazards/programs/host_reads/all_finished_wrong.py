"""Decoding stops when all sequences have ended, which the host asks after each token."""
import torch
from torch import nn

END = 0


def program(device):
    model = nn.Sequential(nn.Embedding(12, 8), nn.Linear(8, 12)).to(device).requires_grad_(False)
    prompt = torch.randint(1, 12, (3,), device=device)

    def decode():
        token, finished, output = prompt, torch.zeros(3, dtype=torch.bool, device=device), []
        for _ in range(4):
            token = model(token)[:, 1:].argmax(-1) + 1
            finished = finished | (token == END)
            output.append(token)
            if finished.all():  # hazard: PG102
                break
        return torch.stack(output, dim=1)

    return decode
