"""Forward and backward of a graphed callable by its number of parameters: torch's callables and Pianola's, from Python.

The models, ways and sizes are those of cuda/callable_host, which is the same in C++ (bench/cuda/callable_host.cpp).
"""

import measuring
import models
import pianola
import torch
from measuring import alternate, case, check_equal, series

TORCH = "torch.cuda.make_graphed_callables"
PIANOLA = "pianola.make_graphed_callables"
SPEEDUPS = {1: 1.8, 64: 8, 256: 10}  # parameters -> bar, where gradients are accumulated
CHECKED_RUNS = 5

# Iterations per sample, by the number of parameters; all in bursts of one length, so that they can be compared.
HOST_ITERATIONS = {1: 60, 8: 60, 64: 40, 256: 20, 1024: 20}
HOST_BURST = 20


def by_torch(model, x):
    # The sample is a copy, because torch copies no input that is the sample itself, and each batch is another one.
    return torch.cuda.make_graphed_callables(model, (x.clone(),)) if x.is_cuda else model


def by_pianola(model, x):
    return pianola.make_graphed_callables(model, (x.clone(),))


class ForwardBackward:
    """With gradients that are there from the beginning, as they are after a first microbatch."""

    def __init__(self, model, device, graph=lambda model, x: model):
        self.x = models.fixed_batch(device, 8, 64)
        self.gradient = models.fixed_batch(device, 8, 64)
        self.parameters = list(model.parameters())
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        self.model = graph(model, self.x)
        self.output = None

    def accumulate(self):
        self.output = self.model(self.x)
        self.output.backward(self.gradient)

    def set_to_none(self):
        for parameter in self.parameters:
            parameter.grad = None
        self.accumulate()

    def state(self):
        return [self.output.detach(), *[parameter.grad for parameter in self.parameters]]


def prepare(make, device, way):
    """{contender: function}, both checked against eager."""
    eager = ForwardBackward(make(), device)
    contenders = {name: ForwardBackward(make(), device, graph) for name, graph in ((TORCH, by_torch), (PIANOLA, by_pianola))}
    for _ in range(CHECKED_RUNS):
        getattr(eager, way)()
        for name, contender in contenders.items():
            getattr(contender, way)()
            check_equal(name, contender.state(), eager.state())
    return {name: getattr(contender, way) for name, contender in contenders.items()}


def model_factory(kind, parameters, device):
    if kind == "sum":
        return lambda: models.parameter_sum(device, parameters)
    return lambda: models.linear_chain(device, layers=parameters // 2)


def cases_of(settings, kind, title, way):
    """Host times by size, then times until done."""
    samples = {}
    for size, iterations in HOST_ITERATIONS.items():
        if kind == "sum" or size > 1:  # a layer has two parameters
            contenders = prepare(model_factory(kind, size, settings.device), settings.device, way)
            samples[size] = alternate(contenders, settings.some(iterations), HOST_BURST, settings.rounds)
    cases = []
    for time, measured in (("host", "host time of forward and backward"), ("wall", "forward and backward until done")):
        for size, taken in samples.items():
            name = f"{title}: {size} parameter{'s' if size > 1 else ''}"
            one = case(name, measured, settings.some(HOST_ITERATIONS[size]), TORCH, series(taken, time))
            if (kind, way, time) == ("sum", "accumulate", "host") and size in SPEEDUPS:
                measuring.require_speedup(one, PIANOLA, TORCH, series(taken, time), SPEEDUPS[size])
            cases.append(one)
    return cases


def run(settings):
    cases = []
    for kind, words in (("sum", "sum of parameters"), ("linear", "chain of linear layers")):
        cases += cases_of(settings, kind, f"{words}, gradients accumulated", "accumulate")
        cases += cases_of(settings, kind, f"{words}, gradients set to none before", "set_to_none")
    return cases
