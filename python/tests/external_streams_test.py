"""Calls on streams that torch has not made, which may be gone at the next call, or have the handle of one that is."""

import ctypes
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
