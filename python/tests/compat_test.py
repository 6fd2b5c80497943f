"""pianola.compat(): Pianola behind torch.cuda's names, with torch's ways where the two differ."""

import pytest
import torch

import pianola
from pianola.torch_compat import TorchCUDAGraph
from twins import MLP, assert_same, assert_same_state, batches, twins


def test_torch_names_are_replaced_and_put_back():
    before = torch.cuda.CUDAGraph, torch.cuda.graph, torch.cuda.make_graphed_callables
    with pianola.compat():
        assert issubclass(torch.cuda.CUDAGraph, pianola.CUDAGraph) and torch.cuda.graph is pianola.graph
        assert torch.cuda.graphs.make_graphed_callables is torch.cuda.make_graphed_callables is not before[2]
        with pianola.compat():
            pass
        assert torch.cuda.CUDAGraph is TorchCUDAGraph
    assert (torch.cuda.CUDAGraph, torch.cuda.graph, torch.cuda.make_graphed_callables) == before


def test_an_empty_capture_warns(device):
    with pianola.compat():
        g = torch.cuda.CUDAGraph()
        with pytest.warns(UserWarning, match="The CUDA Graph is empty"):
            with pianola.graph(g, device=device):
                pass
        g.replay()


def test_gradients_reach_parameters_through_autograd(device):
    eager, graphed = twins(MLP(), device)
    x = torch.randn(8, 16, device=device, requires_grad=True)
    with pianola.compat():
        graphed = torch.cuda.make_graphed_callables(graphed, (x,))
    for batch in batches(3, (8, 16), device):
        results = []
        for model in (eager, graphed):
            leaf = batch.clone().requires_grad_()
            results.append(torch.autograd.grad(model(leaf).square().sum(), (leaf, *model.parameters())))
        for one, other in zip(*results):
            assert_same("gradient", one, other)
    seen = []
    next(graphed.parameters()).register_hook(lambda grad: seen.append(grad.shape))
    graphed(x).sum().backward()
    assert seen == [(16, 16)]


def test_autocast_with_its_cache_is_refused_as_in_torch(device):
    if device.type == "cpu":
        pytest.skip("torch asks for CUDA's autocast alone")
    with pianola.compat(), torch.autocast("cuda", dtype=torch.bfloat16):
        with pytest.raises(RuntimeError, match="does not support the autocast caching. Please set `cache_enabled=False`."):
            torch.cuda.make_graphed_callables(MLP().to(device), (torch.randn(8, 16, device=device),))


def test_the_capture_mode_is_global(device, monkeypatch):
    modes = []
    from pianola import cuda_graph

    original = cuda_graph.capture_options
    monkeypatch.setattr(cuda_graph, "capture_options", lambda d, **o: (modes.append(o["capture_error_mode"]), original(d, **o))[1])
    x = torch.ones(2, device=device)
    with pianola.compat(), pianola.graph(torch.cuda.CUDAGraph(), device=device):
        x.add_(1)
    with pianola.graph(pianola.CUDAGraph(), device=device):
        x.add_(1)
    assert modes == ["global", "thread_local"]


def test_torchs_own_script_runs_unchanged():
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    with pianola.compat():
        model = MLP().cuda()
        static = torch.zeros(8, 16, device="cuda")
        s = torch.cuda.Stream()
        s.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(s), torch.no_grad():
            for _ in range(3):
                model(static)
        torch.cuda.current_stream().wait_stream(s)
        g = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(g):
            y = model(static)
        static.copy_(torch.randn(8, 16))
        g.replay()
        with torch.no_grad():
            assert_same("output", y, model(static))
