"""The generator is set back before the second view, so that both views are augmented alike."""
import torch
from torch import nn


def default_generator(device):
    return torch.cuda.default_generators[device.index or 0] if device.type == "cuda" else torch.default_generator


def program(device):
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).to(device)
    generator = default_generator(torch.device(device))

    @torch.no_grad()
    def step(one, other):
        state = generator.get_state()  # hazard: PG603
        first = model(one)
        generator.set_state(state)  # hazard: PG602
        return first - model(other)

    batches = [(torch.randn(3, 4, device=device), torch.randn(3, 4, device=device)) for _ in range(3)]
    return step, {"batches": batches}
