"""Fixtures of the Python tests: each test runs on the tape, and on a GPU where there is one."""

import os
import random

import pytest
import torch

DEVICES = ["cpu", "cuda"]


@pytest.fixture(params=DEVICES)
def device(request):
    """A torch.device; skips the GPU where there is none, unless PIANOLA_REQUIRE_CUDA promises one."""
    if request.param == "cuda" and not torch.cuda.is_available():
        if os.environ.get("PIANOLA_REQUIRE_CUDA") == "1":
            pytest.fail("PIANOLA_REQUIRE_CUDA is set, but torch sees no GPU")
        pytest.skip("no GPU")
    return torch.device(request.param, 0) if request.param == "cuda" else torch.device(request.param)


@pytest.fixture
def cpu():
    """For what no device decides."""
    return torch.device("cpu")


@pytest.fixture(autouse=True)
def reproducible():
    """Same numbers in each run, and algorithms that give the same bits twice."""
    random.seed(0)
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def closer_looks(monkeypatch):
    """Calls of graphed functions that Python had to look at: none where the library knows them."""
    from pianola._graphed import GraphedFunction

    seen = []
    look = GraphedFunction._call

    def counted(self, *args):
        seen.append(self)
        return look(self, *args)

    monkeypatch.setattr(GraphedFunction, "_call", counted)
    return seen
