"""Past keys and values are tuples in a list, whose entries the model replaces."""
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.key, self.value = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, past):
        keys = torch.cat([past[0][:, 1:], self.key(x)], 1)  # hazard: PG401|PG801|PG802*
        values = torch.cat([past[1][:, 1:], self.value(x)], 1)  # hazard: PG401|PG801|PG802*
        return (x @ keys.transpose(1, 2)).softmax(-1) @ values, (keys, values)


def program(device):
    layers = nn.ModuleList(Layer() for _ in range(2)).to(device).requires_grad_(False)
    past = [(torch.zeros(1, 3, 4, device=device), torch.zeros(1, 3, 4, device=device)) for _ in layers]

    def step(x):
        for number, layer in enumerate(layers):
            x, past[number] = layer(x, past[number])  # hazard: PG401|PG801|PG802*
        return x

    return step, {"batches": [(torch.randn(1, 1, 4, device=device),) for _ in range(3)]}
