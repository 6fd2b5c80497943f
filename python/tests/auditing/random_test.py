"""Generators of torch, Python and numpy."""

import os
import random
import uuid

import pytest
import torch

from marked_steps import check, inputs
from twins import MLP

numpy = pytest.importorskip("numpy")


def test_generators_that_are_set_and_read_in_the_step(device):
    generator = torch.Generator(device)

    def step(x):
        torch.manual_seed(0)  # PG602
        state = torch.get_rng_state()  # PG603
        torch.set_rng_state(state)  # PG602
        generator.manual_seed(1)  # PG602
        generator.set_state(generator.get_state())  # PG602 PG603
        return x * 2

    check(test_generators_that_are_set_and_read_in_the_step, step, batches=inputs(device), generators=[generator])


def test_random_numbers_of_the_host(device):
    own = random.Random(1)

    def step(x):
        a = random.random()  # PG604
        b = random.choice([1, 2, 3])  # PG604
        c = own.gauss(0, 1)  # PG604
        uuid.uuid4()  # PG604
        os.urandom(4)  # PG604
        return x * 2 if a + b + c > -100 else x

    check(test_random_numbers_of_the_host, step, batches=inputs(device))


def test_random_numbers_of_numpy(device):
    generator = numpy.random.default_rng(1)
    state = numpy.random.RandomState(1)

    def step(x):
        a = numpy.random.rand()  # PG604
        b = generator.normal()  # PG604
        c = state.uniform()  # PG604
        return x * 2 if a + b + c > -100 else x

    check(test_random_numbers_of_numpy, step, batches=inputs(device))


def test_random_numbers_of_the_host_that_reach_the_device(device):
    def step(x):
        scale = random.uniform(1, 2)  # PG604
        return x * scale  # PG301

    check(test_random_numbers_of_the_host_that_reach_the_device, step, batches=inputs(device))


def test_python_s_generator_may_be_used_between_runs(device):
    def step(x):
        return x * 2

    check(test_python_s_generator_may_be_used_between_runs, step, batches=inputs(device), between=lambda: random.random())


def test_checkpoint_saves_the_generators_state(device):
    model = MLP(dropout=0.1).to(device)

    def step(x):
        y = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)  # PG605
        y.sum().backward()
        return y.detach()

    check(test_checkpoint_saves_the_generators_state, step, batches=inputs(device))


def test_checkpoint_without_generators(device):
    model = MLP().to(device)

    def step(x):
        y = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False, preserve_rng_state=False)
        y.sum().backward()
        return y.detach()

    check(test_checkpoint_without_generators, step, batches=inputs(device))
