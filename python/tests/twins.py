"""Trains the same thing twice, eagerly and graphed, and compares bit for bit."""

import copy

import torch


class MLP(torch.nn.Module):
    def __init__(self, width=16, layers=3, dropout=0.0):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(layers))
        self.dropout = torch.nn.Dropout(dropout)

    def forward(self, x):
        for layer in self.layers:
            x = self.dropout(torch.relu(layer(x)))
        return x


class ConvNet(torch.nn.Module):
    """With batch normalization, whose statistics every training step writes."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(4)
        self.head = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


def twins(module, device):
    """Two equal modules on the device."""
    module = module.to(device)
    return module, copy.deepcopy(module)


def batches(count, shape, device, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(device) for _ in range(count)]


def assert_same(name, one, other):
    if one is None or other is None:
        assert one is other, f"{name}: {one} against {other}"
        return
    assert one.dtype == other.dtype and one.shape == other.shape, name
    assert torch.equal(one, other), f"{name}: largest difference {(one - other).abs().max().item()}"


def assert_same_state(one, other):
    """Parameters, buffers and gradients."""
    for (name, a), (_, b) in zip(one.state_dict().items(), other.state_dict().items()):
        assert_same(name, a, b)
    for (name, a), (_, b) in zip(one.named_parameters(), other.named_parameters()):
        assert_same(f"gradient of {name}", a.grad, b.grad)


def random_state(device):
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def set_random_state(device, state):
    torch.cuda.set_rng_state(state, device) if device.type == "cuda" else torch.set_rng_state(state)


def run_both(device, eager, graphed):
    """Runs two functions from the same generator state; they must leave the same one behind. Returns both results."""
    start = random_state(device)
    first = eager()
    after_eager = random_state(device)
    set_random_state(device, start)
    second = graphed()
    assert torch.equal(random_state(device), after_eager), "the generator moved differently"
    return first, second


def replays(graphed):
    """Of all signatures of what pianola.graphed made."""
    return sum(one.replays for one in graphed.info().signatures)


def reasons(graphed):
    """Why signatures stay eager, or were captured again."""
    return [one.reason for one in graphed.info().signatures if one.reason]
