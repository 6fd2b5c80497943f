"""The counterpart of `pianola_bench --serve` in Python, with torch.cuda.make_graphed_callables: answers compare.py on
standard input, by the protocol of worker.hpp.

On the CPU, where torch has no graphs, the graphed contenders run eagerly: that tests the programs and measures nothing.
"""

import json
import os
import platform
import sys
import time

import torch
from torch.nn import functional

import models

CHECKED_STEPS = 5
LEARNING_RATE = 1e-5  # as in bench/models/training.cpp


def graphed(callables, samples):
    if samples[0][0].is_cuda:
        return torch.cuda.make_graphed_callables(tuple(callables), tuple(samples))
    return callables


def synchronize():
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def close(what, actual, expected):
    """Shows that the contender does the work; that it does it bit for bit is torch's business."""
    if not torch.allclose(actual, expected, rtol=1e-3, atol=1e-6):
        raise RuntimeError(f"{what} does not compute what eager does")


def magnitude(tensor):
    return tensor.abs().mean().item()


def callable_model(request, device):
    if request["model"] == "sum":
        return models.parameter_sum(device, request["parameters"])
    return models.linear_chain(device, layers=request["parameters"] // 2)


def prepare_callable(request):
    """Contenders and check of one callable: see prepare_callable() in prepared_case.hpp."""
    device = request["device"]
    x = models.fixed_batch(device, 8, 64)
    gradient = models.fixed_batch(device, 8, 64)
    eager = callable_model(request, device)
    # The sample is a copy, because torch copies no input that is the sample itself, and each batch is another one.
    (model,) = graphed([callable_model(request, device)], [(x.clone(),)])
    parameters = list(model.parameters())

    def accumulate():
        model(x).backward(gradient)

    def set_to_none():
        for parameter in parameters:
            parameter.grad = None
        model(x).backward(gradient)

    expected = eager(x)
    expected.backward(gradient)
    close("the callable", model(x), expected)
    set_to_none()
    for one, other in zip(parameters, eager.parameters()):
        close("the callable's backward", one.grad, other.grad)
        # Memory of its own: the gradient that torch hands out is the graph's buffer, to which adding would be wrong.
        one.grad = torch.zeros_like(one)
    check = [magnitude(expected), magnitude(next(eager.parameters()).grad)]
    return {"accumulate": accumulate, "set to none": set_to_none}, check


class Training:
    """The step of bench/models/training.hpp."""

    def __init__(self, model, x, target, scope):
        if scope == "whole":
            (model,) = graphed([model], [(x.clone(),)])
        if scope == "per layer":
            samples = [(x.clone(),)] + [(x.clone().requires_grad_(),) for _ in model[1:]]
            model = torch.nn.Sequential(*graphed(list(model), samples))
        self.model = model
        self.x = x
        self.target = target
        self.optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True)
        self.loss = None

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        loss = functional.mse_loss(self.model(self.x), self.target)
        loss.backward()
        self.optimizer.step()
        self.loss = loss.detach()


def prepare_training(request):
    device = request["device"]
    if request["model"] == "mlp":
        make = models.linear_chain
        x, target = models.fixed_batch(device, 2, 32, 64)
    else:
        make = models.transformer
        x, target = models.fixed_batch(device, 2, 2, 64, 256)
    training = {scope: Training(make(device), x, target, scope) for scope in ("eager", "whole", "per layer")}
    check = []
    for _ in range(CHECKED_STEPS):
        for scope, one in training.items():
            one.step()
            close(scope, one.loss, training["eager"].loss)
        check.append(training["eager"].loss.item())
    return {scope: one.step for scope, one in training.items()}, check


def measure(iteration, iterations, burst):
    """Times as time_bursts() in bench/harness.hpp does."""
    for _ in range(2):
        iteration()
    synchronize()
    host = wall = 0
    for done in range(0, iterations, burst):
        start = time.perf_counter_ns()
        for _ in range(min(burst, iterations - done)):
            iteration()
        host += time.perf_counter_ns() - start
        synchronize()
        wall += time.perf_counter_ns() - start
    return {"host": host / iterations / 1000, "wall": wall / iterations / 1000}


class Worker:
    def __init__(self):
        self.cases = {}

    def answer(self, request):
        return getattr(self, f"do_{request['do']}")(request)

    def do_describe(self, _request):
        return {"torch": torch.__version__, "python": platform.python_version()}

    def do_prepare(self, request):
        prepare = {"callable": prepare_callable, "training": prepare_training}[request["kind"]]
        self.cases[request["case"]], check = prepare(request)
        synchronize()
        return {"check": check}

    def do_measure(self, request):
        return measure(self.cases[request["case"]][request["contender"]], request["iterations"], request["burst"])

    def do_release(self, _request):
        synchronize()
        self.cases.clear()
        return {}


def main():
    # What libraries print must not come between the answers: standard output is standard error from here on.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = Worker()
    for line in sys.stdin:
        try:
            answer = worker.answer(json.loads(line))
        except Exception as error:  # whatever it is, it is the driver that has to know
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
