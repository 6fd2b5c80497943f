"""Calls that are observed or captured give back memory where eager calls do, while they go on."""

import collections
import copy
import dataclasses
import os

import pianola
import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

BLOCKS, WIDTH = 12, 64


class Witness:
    """Counts which storages are alive, by a function that is not followed: it passes for one of torch's."""

    def __init__(self):
        self.storages, self.alive = [], []
        names = {"storages": self.storages, "alive": self.alive, "reference": StorageWeakRef}
        source = """
def meet(tensor):
    storages.append(reference(tensor.untyped_storage()))

def look():
    alive.append(sum(not one.expired() for one in storages))
"""
        exec(compile(source, os.path.join(os.path.dirname(torch.__file__), "witness.py"), "exec"), names)
        self.meet, self.look = names["meet"], names["look"]


class Block(torch.nn.Module):
    """Hands tensors from one method to the other in containers that both drop, as FSDP2 does with what it has gathered."""

    def __init__(self, witness):
        super().__init__()
        self.linear, self.meet, self.pending = torch.nn.Linear(WIDTH, WIDTH), witness.meet, None

    def forward(self, x):
        assert self.pending is None
        y = self.linear(x)
        extra = [y.detach() * number for number in range(3)]
        for one in extra:
            self.meet(one)
        self.pending = {"y": y, "extra": (extra[0], [extra[1]], torch.return_types.max((extra[2], extra[2])))}
        del extra
        return self.finish()

    def finish(self):
        pending, self.pending = self.pending, None
        return torch.relu(pending["y"])


@dataclasses.dataclass
class Outputs(collections.OrderedDict):
    """An entry for each attribute, as of what the models of transformers return."""

    y: torch.Tensor
    more: torch.Tensor

    def __post_init__(self):
        for field in dataclasses.fields(self):
            self[field.name] = getattr(self, field.name)


def as_dictionary(y, more):
    def fill(out):
        out["y"], out["more"] = y, more

    out = {}
    fill(out)
    return out


def as_keywords(y, more):
    def note(**named):
        named["count"] = len(named)
        return named

    return note(y=y, more=more)


class Ordered(collections.OrderedDict):
    """Has its entries when it is met first, so that their order is looked at."""


def as_ordered(y, more):
    def names_of(out):
        return list(out)

    out = Ordered(y=y, more=more)
    assert names_of(out) == ["y", "more"]
    return out


def by_tensor(loss, parameters):
    loss.backward()
    return [parameter.grad for parameter in parameters]


def by_function(loss, parameters):
    torch.autograd.backward(loss)
    return [parameter.grad for parameter in parameters]


def by_gradients(loss, parameters):
    return torch.autograd.grad(loss, parameters)


def replays_of(graphed):
    return sum(one.replays for one in graphed.info().signatures)


@pytest.mark.parametrize("is_training", [False, True])
def test_what_a_call_drops_is_gone_while_it_goes_on(device, monkeypatch, is_training):
    monkeypatch.setattr(pianola._host_dead, "LEAST_BYTES", 1)
    witness = Witness()
    torch.manual_seed(0)
    blocks = torch.nn.ModuleList(Block(witness) for _ in range(BLOCKS)).to(device)

    def step(x):
        for block in blocks:
            x = block(x)
            witness.look()
        if is_training:
            x.square().mean().backward()
        return x.detach()

    graphed = pianola.graphed(step)
    for number in range(6):
        blocks.zero_grad()
        x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(number)).to(device)
        witness.storages.clear(), witness.alive.clear()
        result = graphed(x)
        peak = max(witness.alive, default=0)
        witness.storages.clear()
        blocks.zero_grad()
        assert torch.equal(result, step(x))
        is_tape = number == 3 and device.type == "cpu"  # which keeps all that its operations use
        assert is_tape or peak <= 9, (number, peak)  # those of three blocks
    assert replays_of(graphed) > 1


@pytest.mark.parametrize("backward", [by_tensor, by_function, by_gradients])
@pytest.mark.parametrize("made_by", [Outputs, as_dictionary, as_keywords, as_ordered])
def test_what_the_forward_pass_drops_is_gone_in_the_backward_pass(device, made_by, backward):
    witness = Witness()
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH)).to(device)
    twin = copy.deepcopy(net)

    def loss_of(out):
        return out["y"].square().mean()

    def step(net, x):
        y = net(x)
        out = made_by(y=y, more=y.detach() * 2)
        witness.meet(out["more"])
        loss = loss_of(out)
        del y, out
        parameters = list(net.parameters())
        gradients = backward(loss, parameters)
        witness.look()
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients):
                parameter.sub_(gradient, alpha=0.1)
        net.zero_grad()
        return loss.detach()

    graphed = pianola.graphed(lambda x: step(net, x))
    for number in range(6):
        x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(number)).to(device)
        witness.storages.clear(), witness.alive.clear()
        result = graphed(x)
        is_captured = number == 3  # where the tape keeps all, and a GPU the last few, to tell what is independent
        assert is_captured or not any(witness.alive), (number, witness.alive)
        assert torch.equal(result, step(twin, x))
        assert all(torch.equal(one, other) for one, other in zip(net.parameters(), twin.parameters()))
    assert replays_of(graphed) > 1


def test_gradients_that_a_step_drops_are_gone_while_it_is_captured(device):
    witness = Witness()
    torch.manual_seed(0)
    net = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        witness.look()
        loss.backward()
        optimizer.step()
        return loss.detach()

    graphed = pianola.graphed(step)
    x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(1)).to(device)
    for _ in range(6):
        witness.storages.clear()
        for parameter in net.parameters():
            if parameter.grad is not None:
                witness.meet(parameter.grad)
        graphed(x)
    assert len(witness.alive) >= 4 and not any(witness.alive), witness.alive
    assert replays_of(graphed) == 3
