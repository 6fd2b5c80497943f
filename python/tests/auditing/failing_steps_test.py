"""Steps that fail."""

import sys

import pytest
import torch

import pianola
from marked_steps import check, findings_of, inputs


def test_a_step_that_raises(device):
    calls = []

    def fails(x):
        raise ValueError("the third is too much")  # PG1202

    def step(x):
        calls.append(1)  # PG801
        return fails(x) if len(calls) == 3 else x * 2

    report = check(test_a_step_that_raises, step, batches=inputs(device))
    assert "ValueError: the third is too much" in [one for one in report.findings if one.rule == "PG1202"][0].evidence
    assert not report.ok


def test_a_step_that_raises_at_once(device):
    def step(x):
        return x @ x  # PG1202

    report = check(test_a_step_that_raises_at_once, step, batches=inputs(device))
    assert [one.rule for one in findings_of(report)] == ["PG1202"]


def test_a_step_without_memory(device):
    def step(x):
        raise torch.OutOfMemoryError("no memory")  # PG908

    check(test_a_step_without_memory, step, batches=inputs(device))


def test_what_between_raises_comes_out(device):
    def between():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        pianola.audit(lambda x: x * 2, batches=inputs(device), between=between)
    assert sys.getprofile() is None
