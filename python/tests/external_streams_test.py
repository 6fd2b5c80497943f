"""Calls on streams that torch has not made, which may be gone at the next call, or have the handle of one that is."""

import ctypes
import os
import subprocess
import sys
from contextlib import contextmanager

import pytest
import torch

import pianola

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@contextmanager
def a_stream_that_ends():
    handle = ctypes.c_void_p()
    torch.cuda.check_error(int(torch.cuda.cudart().cudaStreamCreate(ctypes.addressof(handle))))
    try:
        with torch.cuda.stream(torch.cuda.ExternalStream(handle.value)):
            yield
    finally:  # its work goes on
        torch.cuda.check_error(int(torch.cuda.cudart().cudaStreamDestroy(handle.value)))


def _batch(call, rows):
    return torch.full((rows, 512), float(call + 1), device="cuda")


def _work(x):
    """Long enough for the next call to begin before it is done, and reads its input at the end again."""
    y = x
    for _ in range(200):
        y = y * 0.5 + x
    return y + x


@pytest.mark.parametrize("on_streams", ["each on one that ends", "in turn with torch's own"])
def test_calls_of_several_lengths_on_streams_that_end(on_streams):
    graphed = pianola.graphed(_work)
    inputs = {(call, rows): _batch(call, rows) for call in range(16) for rows in (4096, 512)}
    expected = {key: _work(x) for key, x in inputs.items()}
    torch.cuda.synchronize()
    results = {}  # kept: torch's allocator takes streams with one handle for one stream
    with torch.no_grad():
        for rows in (4096, 512) * 5:  # eager calls and captures
            graphed(inputs[0, rows])
        torch.cuda.synchronize()
        for number, (key, x) in enumerate(inputs.items()):
            if on_streams == "in turn with torch's own" and number % 2:
                results[key] = graphed(x)
                continue
            with a_stream_that_ends():
                results[key] = graphed(x)
    torch.cuda.synchronize()
    for key, result in results.items():
        assert torch.equal(result, expected[key]), key
    assert sum(signature.replays for signature in graphed.info().signatures) >= len(inputs)


def print_events_of_replays(draws):
    """Made, and recorded, by six replays on three streams that end; then what three more on torch's stream add. In a process of its own:
    torch's trace of events is never switched off."""
    from torch.cuda import _gpu_trace

    x = torch.ones(64, device="cuda")
    graph = pianola.Graph(x.device)
    graph.capture(lambda: torch.rand_like(x) if draws else x + 1)
    graph.replay()
    with a_stream_that_ends():
        graph.replay()
    made, recorded = [], []
    torch._C._activate_gpu_trace()
    _gpu_trace.register_callback_for_event_creation(made.append)
    _gpu_trace.register_callback_for_event_record(lambda event, stream: recorded.append(event))
    for _ in range(3):
        with a_stream_that_ends():
            graph.replay()
            graph.replay()
    print(len(made), len(recorded), len(set(recorded)))
    made.clear(), recorded.clear()
    for _ in range(3):
        graph.replay()
    print(len(made), len(recorded))


@pytest.mark.parametrize("draws", [False, True])
def test_a_replay_makes_no_event_and_marks_its_end_once(draws):
    program = f"import sys; sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})\n"
    program += f"import external_streams_test\nexternal_streams_test.print_events_of_replays({draws})"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    marks = 2 if draws else 1  # one for the pool, one for the generator
    assert ran.stdout.splitlines() == [f"0 {6 * marks} {marks}", "0 0"], ran.stderr
