"""Training steps whose graphs are made in different ways, and the check that all of them train alike, bit for bit."""

import dataclasses
import functools
import math
from typing import Any, Callable

import models
import pianola
import torch
from measuring import check_equal
from torch.nn import functional

CHECKED_STEPS = 8  # 3 warm up, 1 captures, 4 are replayed
LEARNING_RATE = 1e-5  # as in bench/models/training.cpp

EAGER = "eager Python"
STEP = "@pianola.graphed, whole step"
MODEL = "@pianola.graphed, model"
CALLABLES = "pianola.make_graphed_callables"
COMPILE = 'torch.compile(mode="reduce-overhead")'


@dataclasses.dataclass
class Workload:
    title: str
    model: Callable[[], torch.nn.Module]  # equal ones at each call
    optimizer: Callable[[Any], torch.optim.Optimizer]
    batch: tuple  # the model's input, then what only the loss takes
    criterion: Callable[..., torch.Tensor] = functional.mse_loss

    @property
    def device(self):
        return self.batch[0].device


def adam(device):
    """Fused, and capturable where there are CUDA graphs."""
    return lambda parameters: torch.optim.Adam(parameters, lr=LEARNING_RATE, fused=True, capturable=device != "cpu")


def mlp(device, layers=16):
    x, target = models.fixed_batch(device, 2, 32, 64)
    model = functools.partial(models.linear_chain, device, layers)
    return Workload(f"MLP {layers} x 64, batch 32, Adam", model, adam(device), (x, target))


def transformer(device, layers=8):
    x, target = models.fixed_batch(device, 2, 2, 64, 256)
    model = functools.partial(models.transformer, device, layers)
    return Workload(f"transformer {layers} x 256, batch 2 x 64, Adam", model, adam(device), (x, target))


def train_step(model, optimizer, criterion):
    def step(x, *rest):
        optimizer.zero_grad()
        loss = criterion(model(x), *rest)
        loss.backward()
        optimizer.step()
        return loss

    return step


class Training:
    """One contender: a model, its optimizer and, after graph(), the step that trains it."""

    def __init__(self, workload, way):
        self.workload = workload
        self.way = way
        self.model = workload.model()
        self.optimizer = workload.optimizer(self.model.parameters())
        self.run = None
        self.graphed = None  # what pianola.graphed made, if it did
        self.loss = None
        self.steps = 0

    def graph(self):
        model = self.model
        if self.way == COMPILE:
            model = torch.compile(model, mode="reduce-overhead")
        if self.way == CALLABLES:
            model = pianola.make_graphed_callables(model, (self.workload.batch[0].clone(),))
        if self.way == MODEL:
            model = pianola.graphed(model)
            self.graphed = model.forward
        self.run = train_step(model, self.optimizer, self.workload.criterion)
        if self.way == STEP:
            self.run = self.graphed = pianola.graphed(self.run)
        return self

    def step(self):
        self.loss = self.run(*self.workload.batch)
        self.steps += 1

    def state(self):
        """All that a step leaves."""
        tensors = [self.loss, *self.model.state_dict().values()]
        for parameter in self.model.parameters():
            tensors.append(parameter.grad)
            kept = self.optimizer.state[parameter]
            tensors += [kept[name] for name in sorted(kept) if isinstance(kept[name], torch.Tensor)]
        return [None if tensor is None else tensor.detach().clone() for tensor in tensors]


def random_state(device):
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


class Reference:
    """What eager training leaves after each of its first steps, and in the generator."""

    def __init__(self, workload):
        self.training = Training(workload, EAGER).graph()
        self.states = {}
        torch.manual_seed(1)
        for _ in range(CHECKED_STEPS):
            self.training.step()
            self.states[self.training.steps] = self.training.state()
        self.random_state = random_state(workload.device)

    def check(self, training):
        """Trains on until there was as much of it, comparing after each step; from the beginning with the generator."""
        from_the_beginning = training.steps == 0
        if from_the_beginning:
            torch.manual_seed(1)
        while training.steps < CHECKED_STEPS:
            training.step()
            what = f"{training.workload.title}, {training.way}, step {training.steps}"
            check_equal(what, training.state(), self.states[training.steps])
        if from_the_beginning and not torch.equal(random_state(training.workload.device), self.random_state):
            raise RuntimeError(f"{training.workload.title}, {training.way}: drew other random numbers than eager")

    def check_close(self, training):
        """For those who do not promise more: the loss is the same up to rounding."""
        while training.steps < CHECKED_STEPS:
            training.step()
        loss, expected = training.loss.item(), self.states[CHECKED_STEPS][0].item()
        if not math.isclose(loss, expected, rel_tol=1e-3):
            raise RuntimeError(f"{training.workload.title}, {training.way}: the loss is {loss}, but eager's {expected}")


def require_replayed(training):
    """All calls but the warm-up were replayed: else the times are eager's."""
    for known in training.graphed.info().signatures if training.graphed else ():
        if known.state != "captured" or not known.replays or known.eager_calls > known.warmup_calls:
            raise RuntimeError(f"{training.workload.title}, {training.way}: not all calls were replayed\n"
                               f"{training.graphed.info()}")
