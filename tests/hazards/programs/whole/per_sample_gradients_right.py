"""Gradients by torch.func, per sample: the graph holds the operations below its transforms."""
import torch
from torch import nn
from torch.func import functional_call, grad, vmap


def program(device):
    model = nn.Linear(4, 1).to(device).requires_grad_(False)
    parameters = dict(model.named_parameters())

    def loss(parameters, x, y):
        return (functional_call(model, parameters, (x,)) - y).square().mean()

    per_sample = vmap(grad(loss), in_dims=(None, 0, 0))

    def step(x, y):
        gradients = per_sample(parameters, x, y)
        return {name: g.norm(dim=-1).mean() for name, g in gradients.items()}

    batches = [(torch.randn(3, 4, device=device), torch.randn(3, 1, device=device)) for _ in range(3)]
    return step, {"batches": batches}
