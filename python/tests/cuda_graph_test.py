"""The methods and error texts of CUDAGraph and graph that users of torch.cuda's know."""

import gc
import re
import warnings

import pytest
import torch

import pianola


def captured(device, work, **options):
    g = pianola.CUDAGraph(**options)
    with pianola.graph(g, device=device):
        work()
    return g


def test_replay_runs_on_the_current_stream_and_sees_new_inputs(device):
    x = torch.zeros(4, device=device)
    y = torch.empty_like(x)
    g = captured(device, lambda: torch.add(x, 1, out=y))
    with pianola.stream(pianola.Stream(device)):
        x.fill_(2)
        g.replay()
        assert y.tolist() == [3.0] * 4


def test_what_the_code_wrote_while_it_was_captured_is_put_back(device):
    counter = torch.zeros(1, device=device)
    g = captured(device, lambda: counter.add_(1))
    assert counter.item() == 0
    g.replay()
    assert counter.item() == 1


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda g: g.replay(), "Called CUDAGraph::replay without a preceding successful capture."),
        (lambda g: g.pool(), "Called CUDAGraph::pool() without a preceding successful capture."),
        (lambda g: g.capture_end(), "capture_end() called before capture_begin()."),
        (lambda g: g.instantiate(), "instantiate() is intended to be called by the user only when keep_graph=true"),
        (lambda g: g.raw_cuda_graph(), "unless CUDAGraph was initialized with keep_graph=true"),
        (lambda g: g.raw_cuda_graph_exec(), "until instantiate() has been called"),
    ],
)
def test_methods_before_a_capture_say_what_is_missing(call, text):
    with pytest.raises(pianola.UsageError, match=re.escape(text)):
        call(pianola.CUDAGraph())


def test_methods_that_need_a_capture_say_so_with_keep_graph():
    g = pianola.CUDAGraph(keep_graph=True)
    with pytest.raises(RuntimeError, match="capture_end\\(\\) must have been called before calling instantiate"):
        g.instantiate()
    with pytest.raises(RuntimeError, match="until capture_end\\(\\) has been called"):
        g.raw_cuda_graph()


def test_an_unknown_capture_mode_is_named(device):
    with pytest.raises(RuntimeError, match="Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got x"):
        with pianola.graph(pianola.CUDAGraph(), device=device, capture_error_mode="x"):
            pass


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_each_capture_mode_captures(device, mode):
    x = torch.ones(2, device=device)
    g = pianola.CUDAGraph()
    with pianola.graph(g, device=device, capture_error_mode=mode):
        y = x + 1
    g.replay()
    assert y.tolist() == [2.0, 2.0]


def test_a_graph_captures_once_and_again_after_reset(device):
    x = torch.ones(2, device=device)
    g = captured(device, lambda: x.mul_(2))
    with pytest.raises(RuntimeError, match="already owns a captured graph"):
        with pianola.graph(g, device=device):
            pass
    g.replay()
    g.reset()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        g.replay()
    with pianola.graph(g, device=device):
        x.add_(1)
    g.replay()
    assert x.tolist() == [3.0, 3.0]


def test_an_empty_capture_is_refused(device):
    with pytest.raises(pianola.CaptureError, match="empty"):
        captured(device, lambda: None)


def test_keep_graph_instantiates_on_demand_and_at_the_first_replay(device):
    x = torch.ones(2, device=device)
    g = captured(device, lambda: x.add_(1), keep_graph=True)
    if device.type == "cuda":
        assert g.raw_cuda_graph() != 0
        with pytest.raises(RuntimeError, match="until instantiate\\(\\) has been called"):
            g.raw_cuda_graph_exec()
    g.instantiate()
    g.instantiate()
    if device.type == "cuda":
        assert g.raw_cuda_graph_exec() != 0
    g.replay()
    assert x.tolist() == [2.0, 2.0]
    other = captured(device, lambda: x.add_(1), keep_graph=True)
    other.replay()
    assert x.tolist() == [3.0, 3.0]


def test_debug_dump_writes_dot_after_enable_debug_mode(device, tmp_path):
    x = torch.ones(2, device=device)
    g = captured(device, lambda: x.add_(1))
    with pytest.warns(UserWarning, match="CUDA Graphs debug not enabled"):
        g.debug_dump(tmp_path / "graph.dot")
    g.enable_debug_mode()
    g.debug_dump(tmp_path / "graph.dot")
    assert "digraph" in (tmp_path / "graph.dot").read_text()


def test_an_exception_in_the_code_comes_out_unchanged_with_its_traceback(device):
    class Mine(Exception):
        pass

    g = pianola.CUDAGraph()
    x = torch.ones(2, device=device)
    with pytest.raises(Mine, match="my own") as raised:
        with pianola.graph(g, device=device):
            x + 1
            raise Mine("my own")
    assert raised.traceback[-1].path.name == "cuda_graph_test.py"
    with pianola.graph(g, device=device):  # nothing is left behind
        y = x + 1
    g.replay()
    assert y.tolist() == [2.0, 2.0]


def test_a_value_read_on_the_host_is_named_with_its_line(device):
    x = torch.ones(2, device=device)
    with pytest.raises(pianola.CaptureError) as raised:
        with pianola.graph(pianola.CUDAGraph(), device=device):
            y = x + 1
            y.sum().item()
    assert "host" in str(raised.value) and "fix:" in str(raised.value)
    assert not pianola.is_current_stream_capturing()
    assert (x + 1).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("read", ["tolist", "numpy", "cpu", "__repr__"])
def test_host_reads_that_no_operation_shows_are_refused_on_the_tape(read):
    x = torch.ones(1)
    with pytest.raises(pianola.CaptureError, match=f"Tensor.{read} reads a tensor's values on the host"):
        with pianola.graph(pianola.CUDAGraph(), device="cpu"):
            getattr(x + 1, read)()


def test_errors_carry_their_parts(device):
    with pytest.raises(pianola.Error) as raised:
        pianola.Graph(device).replay()
    error = raised.value
    assert isinstance(error, pianola.UsageError) and isinstance(error, RuntimeError)
    assert "holds no capture" in error.what and error.fix and str(error).startswith(error.what)


def test_capture_on_the_default_stream_is_refused():
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    with pytest.raises(RuntimeError, match="CUDA graphs must be captured on a non-default stream"):
        pianola.CUDAGraph().capture_begin()


def test_a_graph_of_a_function(device):
    x = torch.zeros(4, device=device)
    results = {}
    graph = pianola.Graph(device)
    graph.capture(lambda: results.update(y=x + 1), warmup=2)
    x.fill_(3)
    graph.replay()
    assert results["y"].tolist() == [4.0] * 4
    info = graph.info()
    assert info.backend == ("cuda" if device.type == "cuda" else "tape") and info.nodes >= 1
    assert "nodes" in str(info)


def test_a_graph_fills_its_inputs_at_replay(device):
    x = torch.zeros(4, device=device)
    results = {}
    graph = pianola.Graph(device)
    graph.capture(lambda: results.update(y=x * 2), inputs=[x])
    graph.replay(torch.full((4,), 3.0, device=device))
    assert results["y"].tolist() == [6.0] * 4


def test_an_exception_in_a_function_comes_out_unchanged(device):
    def step():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        pianola.Graph(device).capture(step)


def test_a_host_read_in_a_function_keeps_torchs_error_as_its_cause(device):
    x = torch.ones(2, device=device)
    with pytest.raises(pianola.CaptureError) as raised:
        pianola.Graph(device).capture(lambda: x.sum().item(), warmup=0)
    assert "host" in str(raised.value)


def test_failed_captures_leave_no_memory_behind(device):
    x = torch.ones(1 << 16, device=device)

    def attempt():
        try:
            with pianola.graph(pianola.CUDAGraph(), device=device):
                (x * 2).sum().item()
        except pianola.CaptureError:
            pass

    attempt()
    gc.collect()
    if device.type == "cuda":
        before = torch.cuda.memory_reserved(), torch.cuda.memory_allocated()
        for _ in range(50):
            attempt()
        reserved, allocated = before
        assert torch.cuda.memory_allocated() == allocated
        assert torch.cuda.memory_reserved() <= reserved  # less where torch gives a pool back a while after the capture that failed
    else:
        for _ in range(50):
            attempt()


def test_is_current_stream_capturing_tells_inside_from_outside(device):
    x = torch.ones(2, device=device)
    inside = []
    captured(device, lambda: (inside.append(pianola.is_current_stream_capturing()), x.add_(1)))
    assert inside == [True] and not pianola.is_current_stream_capturing()
    graph = pianola.Graph(device)
    graph.capture(lambda: (inside.append(pianola.is_current_stream_capturing()), x.add_(1)), warmup=2)
    assert inside[1:] == [False, False, True]


def test_pools_by_handle_object_and_graph(device):
    pool = pianola.GraphPool(device)
    x = torch.ones(4, device=device)
    first, second = pianola.Graph(device), pianola.CUDAGraph()
    keep = []
    first.capture(lambda: keep.append(x + 1), pool=pool)
    with pianola.graph(second, pool=first, device=device):
        keep.append(x + 2)
    assert first.pool() == second.pool() == pool.id
    with pytest.raises(pianola.UsageError, match="names no memory pool"):
        with pianola.graph(pianola.CUDAGraph(), pool="mine", device=device):
            pass


def test_a_torch_pool_can_be_shared():
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    pool = torch.cuda.MemPool()
    x = torch.ones(4, device="cuda")
    g = pianola.CUDAGraph()
    with pianola.graph(g, pool=pool.id):
        y = x + 1
    g.replay()
    assert g.pool() == pool.id and y.tolist() == [2.0] * 4


def test_no_warning_comes_from_a_plain_capture(device):
    x = torch.ones(2, device=device)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        captured(device, lambda: x.add_(1)).replay()


def test_an_operation_left_by_a_saved_tensor_hook_is_refused_on_the_tape():
    class Stop(Exception):
        pass

    def pack(tensor):
        raise Stop

    x = torch.ones(2, requires_grad=True)
    with pytest.raises(pianola.CaptureError, match="a saved-tensor hook threw inside aten::exp"):
        with pianola.graph(pianola.CUDAGraph(), device="cpu"):
            y = x * 2
            try:
                with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                    y.exp()
            except Stop:
                pass


@pytest.mark.parametrize("in_place", [False, True])
def test_a_saved_tensor_hook_that_computes_is_replayed(device, in_place):
    """On inputs it runs before the operation's kernel, on results behind it."""
    x = torch.ones(2, device=device, requires_grad=True)
    w = torch.full((2,), 3.0, device=device, requires_grad=True)

    def step():
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor * 0.25 + 1, lambda tensor: (tensor - 1) * 4):
            y = x * 2
            y = y.mul_(w).sigmoid_() if in_place else (y * w).sigmoid()
        return torch.autograd.grad(y.exp().sum(), (x, w))

    gradients = []
    graph = pianola.Graph(device)
    graph.capture(lambda: gradients.append(step()))
    for value in (0.5, -0.25, 2.0):
        x.data.fill_(value)
        graph.replay()
        for replayed, eager in zip(gradients[-1], step()):
            assert torch.equal(replayed, eager)


def test_reset_abandons_a_capture_that_is_open(device):
    x = torch.ones(2, device=device)
    g = pianola.CUDAGraph()
    with pianola.stream(pianola.Stream(device)):
        g.capture_begin(device=device)
        x.add_(1)
        g.reset()
    assert not pianola.is_current_stream_capturing() and x.tolist() == [1.0, 1.0]
    with pianola.graph(g, device=device):
        x.add_(1)
    g.replay()
    assert x.tolist() == [2.0, 2.0]
