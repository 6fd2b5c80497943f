"""A functionalized loss: what functionalize puts off and runs later is no operation of the step."""
import torch
from torch import nn
from torch.func import functional_call, functionalize


def program(device):
    model = nn.Linear(4, 1).to(device).requires_grad_(False)
    parameters = dict(model.named_parameters())

    def loss(parameters, x, y):
        return (functional_call(model, parameters, (x,)) - y).square().mean()  # hazard: PG1203

    functional = functionalize(loss)

    def step(x, y):
        return functional(parameters, x, y)

    batches = [(torch.randn(3, 4, device=device), torch.randn(3, 1, device=device)) for _ in range(3)]
    return step, {"batches": batches}
