"""For tests that compile."""

import os
import shutil

import pytest
import torch
from torch._dynamo.utils import counters

NEEDS_A_COMPILER = pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="inductor needs a compiler")


@pytest.fixture(autouse=True)
def fresh_compiler():
    """Each test starts without compiled code, and counts from zero."""
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()
