"""Calls that the library knows from the replay before them: no Python of ours runs for them, whatever their arguments are."""

import dataclasses
import gc
import weakref

import numpy
import pianola
import pytest
import torch
from twins import assert_same

WARM = 8


class Config:
    def __init__(self, scale):
        self.scale = scale


def make_model(device, seed=3):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).to(device)


def train(model, optimizer, config, x, loss_of):
    loss = loss_of(model(x)) * config.scale
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def square(y):
    return y.square().mean()


class Trained:
    def __init__(self, device, graphed):
        self.model = make_model(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.config = Config(2.0)
        self.step = pianola.graphed(train) if graphed else train

    def __call__(self, x, loss_of=square):
        return self.step(self.model, self.optimizer, self.config, x, loss_of=loss_of)


def test_a_model_and_its_optimizer_as_arguments(device, closer_looks):
    ours, eager = Trained(device, True), Trained(device, False)
    for i in range(2 * WARM):
        if i == WARM:
            closer_looks.clear()
        x = torch.randn(6, 8, generator=torch.Generator().manual_seed(i)).to(device)
        assert_same(f"loss {i}", ours(x), eager(x))
    assert not closer_looks, "each call is one launch, with nothing of Python before it"
    for one, other in zip(ours.model.parameters(), eager.model.parameters()):
        assert_same("a parameter", one, other)


def test_what_such_an_object_holds_is_compared(device):
    ours, eager = Trained(device, True), Trained(device, False)
    for i in range(3 * WARM):
        if i == WARM:
            ours.config.scale = eager.config.scale = 0.5
        if i == 2 * WARM:
            ours.optimizer.param_groups[0]["lr"] = eager.optimizer.param_groups[0]["lr"] = 0.01
        x = torch.randn(6, 8, generator=torch.Generator().manual_seed(i)).to(device)
        assert_same(f"loss {i}", ours(x), eager(x))


def test_another_object_is_another_call(device):
    one, other = make_model(device, 3), make_model(device, 4)
    graphed = pianola.graphed(lambda model, x: model(x).detach())
    for i in range(3 * WARM):
        model = other if WARM <= i < 2 * WARM else one
        x = torch.randn(6, 8, generator=torch.Generator().manual_seed(i)).to(device)
        assert_same(f"call {i}", graphed(model, x), model(x).detach())
    assert sum(signature.replays for signature in graphed.info().signatures) >= WARM


@dataclasses.dataclass
class Batch:
    x: torch.Tensor


class Pair(tuple):
    __slots__ = ()


@pytest.mark.parametrize("make", [Batch, lambda x: Pair((x,)), lambda x: [x]], ids=["dataclass", "tuple of a class", "list"])
def test_containers_are_not_taken_for_objects(device, make):
    """The same one comes with another tensor."""
    holder = make(torch.zeros(4, device=device))
    read = (lambda held: held.x) if isinstance(holder, Batch) else (lambda held: held[0])
    graphed = pianola.graphed(lambda held: read(held) * 2)
    for i in range(2 * WARM):
        if isinstance(holder, Batch):
            holder.x = torch.full((4,), float(i), device=device)
        else:
            holder = make(torch.full((4,), float(i), device=device))
        assert graphed(holder)[0].item() == 2 * i


def test_an_array_is_read_anew(device):
    weights = numpy.ones(4, dtype=numpy.float32)
    graphed = pianola.graphed(lambda x, weights: x * torch.from_numpy(weights).to(x.device))
    x = torch.ones(4, device=device)
    for i in range(2 * WARM):
        weights[:] = i
        assert graphed(x, weights)[0].item() == i


class Swapping:
    """Whose attribute changes the arguments of the call that reads it."""

    batch = None

    def __getattr__(self, name):
        if name != "scale":
            raise AttributeError(name)
        if Swapping.batch:
            Swapping.batch[0] = None
        return 2.0


def test_what_a_look_at_the_host_does_to_the_arguments(device):
    local = Swapping()
    graphed = pianola.graphed(lambda batch: batch[0] * local.scale)
    for i in range(2 * WARM):
        x = torch.full((4,), float(i), device=device)
        batch = [x]
        del x
        if i >= WARM:
            Swapping.batch = batch
        try:
            assert graphed(batch)[0].item() == 2 * i
        except TypeError:  # as eager: the first thing that it reads is None by then
            assert batch[0] is None
        finally:
            Swapping.batch = None


def test_a_model_that_was_an_argument_goes_with_the_function(device):
    model = make_model(device)
    graphed = pianola.graphed(lambda model, x: model(x).detach())
    for _ in range(WARM):
        graphed(model, torch.ones(6, 8, device=device))
    held = weakref.ref(model)
    del model, graphed
    gc.collect()
    assert held() is None
