"""Code that asks whether the current stream is captured, and code that changes what its operations choose by."""

import threading

import pytest
import torch

import pianola
from surroundings import double_precision
from twins import assert_same


def doubles_under_capture(x):
    return x * (2 if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing() else 3)


def test_a_graphed_function_does_what_it_did_before(device):
    step = pianola.graphed(doubles_under_capture)
    x = torch.ones(4, device=device)
    for _ in range(8):
        assert torch.equal(step(x), x * 3)
    (known,) = step.info().signatures
    assert known.replays == 5, known.reason


def test_other_captures_are_told_the_truth(device):
    if device.type == "cpu":
        pytest.skip("no stream of the CPU is captured")
    step = pianola.graphed(doubles_under_capture)
    x = torch.ones(4, device=device)
    for _ in range(5):
        step(x)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.cuda.graph(graph, stream=stream):
        result = doubles_under_capture(x)
        assert torch.cuda.is_current_stream_capturing()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(result, x * 2)
    assert not torch.cuda.is_current_stream_capturing()


def test_a_default_dtype_that_the_step_sets(device):
    def angles(x):
        with double_precision():
            steps = torch.arange(32, device=x.device) * 0.1
        return x * steps.cos(), torch.arange(4, device=x.device) / 3

    step = pianola.graphed(angles)
    for i in range(8):
        x = torch.randn(32, generator=torch.Generator().manual_seed(i)).to(device)
        for ours, eager in zip(step(x), angles(x)):
            assert_same(f"call {i}", ours, eager)
        assert torch.get_default_dtype() == torch.float32
    (known,) = step.info().signatures
    assert known.replays == 5, known.reason


def test_threads_that_set_default_dtypes_leave_the_processs_alone(cpu):
    def in_double(x):
        with double_precision():
            for _ in range(20):
                x = x + torch.arange(4) * 0.1
        return x

    def usual(x):
        return x + torch.arange(4) * 0.1

    x = torch.zeros(4)
    steps = [pianola.graphed(in_double), pianola.graphed(usual)]
    for step in steps:
        for _ in range(5):
            step(x)

    def replay(step):
        for _ in range(300):
            step(x)

    for _ in range(5):
        threads = [threading.Thread(target=replay, args=(step,)) for step in steps]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert torch.get_default_dtype() == torch.float32
    assert sum(step.info().signatures[0].replays for step in steps) > 100
