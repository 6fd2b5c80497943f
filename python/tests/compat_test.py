"""pianola.compat(): Pianola behind torch.cuda's names, with torch's ways where the two differ."""

import copy

import pytest
import torch

import pianola
from pianola import _compat
from pianola._errors import refuse
from pianola._compat import TorchCUDAGraph, TorchGraph
from twins import MLP, assert_same, assert_same_state, batches, twins


def test_torch_names_are_replaced_and_put_back():
    before = torch.cuda.CUDAGraph, torch.cuda.graph, torch.cuda.make_graphed_callables
    with pianola.compat():
        assert issubclass(torch.cuda.CUDAGraph, pianola.CUDAGraph) and issubclass(torch.cuda.graph, pianola.graph)
        assert torch.cuda.graphs.make_graphed_callables is torch.cuda.make_graphed_callables is not before[2]
        with pianola.compat():
            pass
        assert torch.cuda.CUDAGraph is TorchCUDAGraph
    assert (torch.cuda.CUDAGraph, torch.cuda.graph, torch.cuda.make_graphed_callables) == before


def run_in(module, line):
    """Runs a line as if it stood in that module."""
    names = {}
    exec(compile(line, module.__file__, "exec"), module.__dict__, names)
    return names["it"]


def test_torchs_own_code_keeps_torchs_classes(monkeypatch):
    import torch._dynamo.backends.cudagraphs as dynamo
    import torch._inductor.cudagraph_trees as trees
    import torch.cuda.graphs as graphs

    made = []
    monkeypatch.setattr(_compat, "_TORCHS_GRAPH", type("OfTorch", (), {"__init__": lambda self: made.append(self)}))
    monkeypatch.setattr(_compat, "_torchs_capture", lambda graph, **options: ("captured by torch", graph, options))
    with pianola.compat():
        for module in (dynamo, trees, graphs):
            g = run_in(module, "it = torch.cuda.CUDAGraph()")
            assert g is made[-1]
            module.__dict__["_a_graph"] = g
            try:
                captured = run_in(module, "it = torch.cuda.graph(_a_graph, stream=None)")
            finally:
                del module.__dict__["_a_graph"]
            assert captured == ("captured by torch", g, {"stream": None})
        assert type(torch.cuda.CUDAGraph()) is TorchCUDAGraph and len(made) == 3

        class Mine(torch.cuda.CUDAGraph):
            pass

        assert type(Mine()) is Mine and len(made) == 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("options", [{"mode": "reduce-overhead"}, {"backend": "cudagraphs"}])
def test_what_torch_compiles_keeps_its_own_graphs(options):
    torch._dynamo.reset()
    model = MLP().cuda()
    twin = copy.deepcopy(model)
    with pianola.compat():
        compiled = torch.compile(model, **options)
        for batch in batches(6, (8, 16), torch.device("cuda")):
            torch.compiler.cudagraph_mark_step_begin()
            loss = compiled(batch).square().sum()
            loss.backward()
            expected = twin(batch).square().sum()
            expected.backward()
            torch.testing.assert_close(loss, expected)
            for one, other in zip(model.parameters(), twin.parameters()):
                torch.testing.assert_close(one.grad, other.grad)
                # Memory of torch's graph, which the next step overwrites; torch refuses to add to it then.
                one.grad = other.grad = None
    torch._dynamo.reset()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_graph_from_before_is_captured_by_torch():
    before = torch.cuda.CUDAGraph()
    x = torch.ones(4, device="cuda")
    with pianola.compat():
        with torch.cuda.graph(before):
            y = x * 2
        before.replay()
        assert y.tolist() == [2.0] * 4


def test_pianolas_context_says_what_it_cannot_fill(monkeypatch):
    class CUDAGraph:
        pass

    with pytest.raises(pianola.UsageError, match="was given a .*CUDAGraph, which it cannot fill") as refused:
        pianola.graph(CUDAGraph())
    assert "pass a pianola.CUDAGraph" in refused.value.fix


def test_out_of_memory_in_a_capture_is_torchs_error_too():
    with pytest.raises(torch.OutOfMemoryError) as caught:
        refuse("the device ran out of memory", "use smaller batches", kind="OutOfMemoryError", rule="PG908")
    assert isinstance(caught.value, pianola.OutOfMemoryError) and isinstance(caught.value, pianola.CaptureError)
    assert (caught.value.what, caught.value.rule) == ("the device ran out of memory", "PG908")
    with pytest.raises(pianola.CaptureError) as caught:
        refuse("something else", kind="CaptureError")
    assert not isinstance(caught.value, torch.OutOfMemoryError)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_capture_that_runs_out_of_memory_raises_it():
    with pianola.compat():
        for attempt in range(2):
            with pytest.raises(torch.OutOfMemoryError, match="ran out of memory at aten::empty") as caught:
                with torch.cuda.graph(torch.cuda.CUDAGraph()):
                    torch.empty(1 << 48, device="cuda")
            assert isinstance(caught.value, pianola.CaptureError)


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
    from pianola import _cuda_graph

    original = _cuda_graph.capture_options
    monkeypatch.setattr(_cuda_graph, "capture_options", lambda d, **o: (modes.append(o["capture_error_mode"]), original(d, **o))[1])
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


def test_conditional_nodes_are_refused():
    with pianola.compat():
        g = torch.cuda.CUDAGraph()
    for name in (
        "begin_capture_to_if_node",
        "begin_capture_to_while_node",
        "end_capture_to_conditional_node",
        "set_conditional_handle_for_current_node",
    ):
        with pytest.raises(pianola.UsageError, match="Pianola's graphs hold no conditional nodes") as refused:
            getattr(g, name)()
        assert "torch.where" in refused.value.fix and "outside of pianola.compat()" in refused.value.fix


@pytest.mark.parametrize("recorded", [True, False])
def test_annotations_are_refused_where_torch_would_record_them(device, recorded, monkeypatch):
    monkeypatch.setattr(_compat, "records_annotations", lambda: recorded)
    x, model = torch.randn(8, 16, device=device), MLP().to(device)

    for attempt in (
        lambda: TorchGraph(TorchCUDAGraph(), enable_annotations=True, device=device),
        lambda: TorchGraph(TorchCUDAGraph(), enable_annotations=True, annotation_config={"key_by": "auto"}, device=device),
        lambda: _compat.torch_make_graphed_callables(model, (x,), enable_annotations=True),
    ):
        if recorded:
            with pytest.raises(pianola.UsageError, match="does not record torch's annotations of kernels") as refused:
                attempt()
            assert "leave it out" in refused.value.fix
        else:
            attempt()
    with pytest.raises(pianola.UsageError, match="annotations of kernels"):
        TorchGraph(TorchCUDAGraph(), enable_annotations=True, annotation_config={"backend": "cupti"}, device=device)
    TorchGraph(TorchCUDAGraph(), annotation_config={"backend": "auto"}, device=device)  # as in torch, of no use alone


def test_input_liveness_reaches_the_graph(device):
    x = torch.ones(2, device=device)
    g = TorchCUDAGraph()
    with TorchGraph(g, check_input_liveness=True, device=device):
        y = x + 1
    g.replay()
    assert y.tolist() == [2.0, 2.0]
    del x
    with pytest.raises(RuntimeError, match="nothing was launched"):
        g.replay()


def test_graphed_callables_are_captured_in_the_mode_that_was_asked_for(device, monkeypatch):
    modes = []
    original = _compat.make_graphed_callables

    def watched(*given, **options):
        modes.append(given[5])
        return original(*given, **options)

    monkeypatch.setattr(_compat, "make_graphed_callables", watched)
    x = torch.randn(8, 16, device=device)
    for options in ({}, {"capture_error_mode": "relaxed"}):
        _compat.torch_make_graphed_callables(MLP().to(device), (x,), **options)
    assert modes == ["global", "relaxed"]


def test_export_dot_writes_graphs_of_both(device, tmp_path, monkeypatch):
    of_torch = []
    monkeypatch.setattr(_compat, "_torchs_export", lambda path, verbose: lambda graph: of_torch.append((path, verbose, graph)))
    x = torch.ones(2, device=device)
    g = TorchCUDAGraph()
    hook = _compat.torch_export_dot(str(tmp_path / "graph.dot"), verbose=False)
    g.register_capture_end_hook(hook)
    with TorchGraph(g, device=device):
        x.add_(1)
    assert "digraph" in (tmp_path / "graph.dot").read_text() and not of_torch
    hook("a graph of torch's")
    assert of_torch == [(str(tmp_path / "graph.dot"), False, "a graph of torch's")]


def test_export_dot_is_offered_where_torch_has_it():
    before = getattr(torch.cuda.graphs, "export_dot", None)
    with pianola.compat():
        within = getattr(torch.cuda.graphs, "export_dot", None)
    assert within is (_compat.torch_export_dot if before else None)
    assert getattr(torch.cuda.graphs, "export_dot", None) is before
