"""What changes between runs, and would be frozen."""

import types

import torch

from marked_steps import State, check, inputs
from twins import MLP


def test_a_number_that_only_the_host_reads(device):
    config = State()

    def step(x):
        if config.steps > 100:  # PG304
            return x * 3
        return x * 2

    def between():
        config.steps += 1

    check(test_a_number_that_only_the_host_reads, step, batches=inputs(device), between=between)


def test_a_number_that_an_operation_takes(device):
    config = State()

    def step(x):
        return x * config.scale  # PG301

    def between(runs):
        config.scale = 1.0 + runs

    check(test_a_number_that_an_operation_takes, step, batches=inputs(device), between=between)


def test_a_number_among_the_arguments(device):
    def step(x, scale, name):
        return x * scale  # PG301

    entries = [(x, 1.0 + i, "same") for i, (x,) in enumerate(inputs(device))]
    check(test_a_number_among_the_arguments, step, batches=entries)


def test_a_counter_of_the_training_loop_that_the_step_does_not_read(device):
    loop = types.SimpleNamespace(epoch=0)

    def step(x):
        return x * 2

    def between():
        loop.epoch += 1

    check(test_a_counter_of_the_training_loop_that_the_step_does_not_read, step, batches=inputs(device), between=between)


def test_a_tensor_that_the_training_loop_replaces(device):
    state = {"weight": torch.ones(16, device=device)}

    def step(x):
        return x * state["weight"]  # PG401

    def between():
        state["weight"] = state["weight"] + 1

    report = check(test_a_tensor_that_the_training_loop_replaces, step, batches=inputs(device), between=between)
    assert "state['weight']" in report.findings[0].what


def test_the_learning_rate_of_a_scheduler(device):
    model = MLP().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    def step(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()  # PG1001

    check(test_the_learning_rate_of_a_scheduler, step, batches=inputs(device), between=scheduler.step)
