"""What torch's CUDAGraph can do from 2.12 on: hooks, objects kept, a capture ended in two halves, inputs that are gone."""

import gc
import weakref
from collections import OrderedDict

import pytest
import torch

import pianola
from pianola import _torch_abi
from pianola._cuda_graph import _FURTHER_LINES


def captured(device, work, **options):
    g = pianola.CUDAGraph(**options)
    with pianola.graph(g, device=device):
        work()
    return g


def hooked(log, **options):
    """A graph that says what happens to it."""
    g = pianola.CUDAGraph(**options)
    capturing = pianola.is_current_stream_capturing
    g.register_capture_start_hook(lambda graph: log.append(("capture start", graph is g, capturing())))
    g.register_capture_end_hook(lambda graph: log.append(("capture end", graph is g, capturing())))
    g.register_post_instantiate_hook(lambda graph: log.append("instantiate"))
    g.register_replay_start_hook(lambda graph: log.append("replay start"))
    g.register_replay_end_hook(lambda graph: log.append("replay end"))
    return g


CAPTURE = [("capture start", True, True), ("capture end", True, False)]
REPLAY = ["replay start", "replay end"]


def test_a_step_may_allocate_in_a_pool_of_its_own(device):
    if device.type != "cuda":
        pytest.skip("torch.cuda.use_mem_pool() wants a GPU")
    x, pool = torch.ones(64, device=device), torch.cuda.MemPool()
    results = []

    def step():
        with torch.cuda.use_mem_pool(pool):
            results[:] = [x * 2]

    g = captured(device, step)
    x.fill_(3)
    g.replay()
    assert torch.equal(results[0], torch.full_like(x, 6))


def test_hooks_run_at_their_moments(device):
    log, x = [], torch.zeros(2, device=device)
    g = hooked(log)
    with pianola.graph(g, device=device):
        x.add_(1)
    assert log == [*CAPTURE, "instantiate"]
    g.replay()
    g.replay()
    assert log[3:] == REPLAY * 2 and x.tolist() == [2.0, 2.0]


def test_with_keep_graph_the_executable_is_made_later(device):
    log, x = [], torch.zeros(2, device=device)
    g = hooked(log, keep_graph=True)
    with pianola.graph(g, device=device):
        x.add_(1)
    assert log == CAPTURE
    g.replay()
    g.replay()
    g.instantiate()
    assert log[2:] == ["instantiate", *REPLAY * 2, "instantiate"] and x.tolist() == [2.0, 2.0]


def test_hooks_run_in_order_until_they_are_removed(device):
    log, x = [], torch.zeros(2, device=device)
    g = captured(device, lambda: x.add_(1))
    first = g.register_replay_start_hook(lambda graph: log.append(1))
    g.register_replay_start_hook(lambda graph: log.append(2))
    g.replay()
    first.remove()
    g.replay()
    assert log == [1, 2, 2]


def test_a_capture_whose_hook_raises_leaves_nothing_behind(device):
    def fails(graph):
        raise KeyError("mine")

    x = torch.zeros(2, device=device)
    g = pianola.CUDAGraph()
    for register in (g.register_capture_start_hook, g.register_capture_end_hook, g.register_post_instantiate_hook):
        hook = register(fails)
        with pytest.raises(KeyError, match="mine"):
            with pianola.graph(g, device=device):
                x.add_(1)
        assert not pianola.is_current_stream_capturing() and x.tolist() == [0.0, 0.0]
        with pytest.raises(pianola.UsageError, match="without a preceding successful capture"):
            g.replay()
        hook.remove()
    with pianola.graph(g, device=device):
        x.add_(1)
    g.replay()
    assert x.tolist() == [1.0, 1.0]


def test_a_replay_hook_that_raises_stops_the_launch(device):
    log, x = [], torch.zeros(2, device=device)

    def fails(graph):
        raise KeyError("mine")

    g = captured(device, lambda: x.add_(1))
    g.register_replay_end_hook(lambda graph: log.append("end"))
    g.register_replay_start_hook(fails)
    with pytest.raises(KeyError, match="mine"):
        g.replay()
    assert x.tolist() == [0.0, 0.0] and not log


def test_the_end_hook_runs_behind_a_replay_that_failed():
    log, index, x = [], torch.zeros(1, dtype=torch.long), torch.zeros(2)
    g = captured(torch.device("cpu"), lambda: x.index_select(0, index))
    g.register_replay_end_hook(lambda graph: log.append("end"))
    index.fill_(5)
    with pytest.raises((IndexError, RuntimeError)):
        g.replay()
    assert log == ["end"]


@pytest.mark.parametrize("moment", ["capture_start", "capture_end", "instantiate", "replay_start", "replay_end"])
def test_hooks_for_all_graphs_go_first_and_their_errors_are_dropped(device, moment, monkeypatch):
    log, x = [], torch.zeros(2, device=device)

    def of_all(graph):
        log.append(("all", graph))
        raise KeyError("nobody's")

    remove = register_for_all(moment, of_all, monkeypatch)
    name = "post_instantiate" if moment == "instantiate" else moment
    g = pianola.CUDAGraph()
    getattr(g, f"register_{name}_hook")(lambda graph: log.append("own"))
    with pianola.graph(g, device=device):
        x.add_(1)
    g.replay()
    remove()
    g.replay()
    assert log[:2] == [("all", g), "own"] and log[2:] == (["own"] if moment.startswith("replay") else [])


def register_for_all(moment, hook, monkeypatch):
    """By torch's function, or, before 2.14, as if torch had one."""
    if hasattr(torch.cuda.graphs, f"register_graph_{moment}_hook"):
        return getattr(torch.cuda.graphs, f"register_graph_{moment}_hook")(hook).remove
    hooks = OrderedDict({0: hook})
    monkeypatch.setattr(torch.cuda.graphs, f"_global_{moment}_hooks", hooks, raising=False)
    return hooks.clear


class Held:
    pass


def test_what_is_kept_goes_with_the_capture(device, monkeypatch):
    gc.collect()  # graphs of other tests tell of their end, too
    log, x = [], torch.zeros(2, device=device)
    remove = register_for_all("destroy", lambda ids: log.append(ids), monkeypatch)
    g = captured(device, lambda: x.add_(1))
    held, early = Held(), Held()
    watched, watched_early = weakref.ref(held), weakref.ref(early)
    g.retain_object(held)
    g.retain_object(early).remove()
    g.register_destroy_callback(lambda: 1 / 0)
    g.register_destroy_callback(lambda: log.append("first"))
    g.register_destroy_callback(lambda: log.append("removed")).remove()
    del held, early
    assert watched() is not None and watched_early() is None
    g.reset()
    assert watched() is None and log == [set(), "first"]
    g.register_destroy_callback(lambda: log.append("second"))
    with pianola.graph(g, device=device):
        x.add_(1)
    del g
    gc.collect()
    remove()
    assert log == [set(), "first", set(), "second"]


def test_what_is_kept_may_wait_for_replays(device):
    x = torch.zeros(2, device=device)
    g = captured(device, lambda: x.add_(1))
    g.replay()
    log = []
    g.register_destroy_callback(lambda: log.append(x.tolist()), synchronize_before_release=True)
    side = pianola.Stream(device)
    with pianola.stream(side):
        g.replay()
    assert g._kept.streams == {side}
    g.reset()
    assert log == [[2.0, 2.0]]


def test_a_capture_ends_in_two_halves(device):
    x = torch.zeros(2, device=device)
    for keep_graph in (False, True):
        g = pianola.CUDAGraph(keep_graph)
        with pianola.stream(pianola.Stream(device)):
            g.capture_begin(device=device)
            x.add_(1)
            g.capture_end_pre()
        assert (g.raw_cuda_graph() != 0) == (device.type == "cuda")
        g.instantiate()
        g.capture_end_post()
        g.replay()
    assert x.tolist() == [2.0, 2.0]
    with pytest.raises(pianola.UsageError, match="capture_end_post\\(\\) called before capture_end_pre\\(\\)"):
        g.capture_end_post()


def test_the_graph_is_there_for_hooks_at_the_end(device, tmp_path):
    x = torch.zeros(2, device=device)
    g, raw = pianola.CUDAGraph(), []
    g.register_capture_end_hook(lambda graph: raw.append(graph.raw_cuda_graph()))
    g.register_capture_end_hook(lambda graph: graph.debug_dump(tmp_path / "graph.dot"))
    with pianola.graph(g, device=device):
        x.add_(1)
    assert (raw[0] != 0) == (device.type == "cuda") and "aten::add_" in (tmp_path / "graph.dot").read_text()
    with pytest.raises(pianola.UsageError, match="unless CUDAGraph was initialized with keep_graph=true"):
        g.raw_cuda_graph()


def test_a_dump_that_is_not_verbose_names_nodes_alone(device, tmp_path):
    x = torch.zeros(2, device=device)
    g = captured(device, lambda: x.add_(1), keep_graph=True)
    g.debug_dump(tmp_path / "long.dot")
    g.debug_dump(tmp_path / "short.dot", verbose=False)
    long, short = (tmp_path / "long.dot").read_text(), (tmp_path / "short.dot").read_text()
    assert short.count("label=") == long.count("label=") and "\\n" not in short
    assert (long == short) == (device.type == "cpu")


def test_of_labels_the_first_line_is_left():
    assert _FURTHER_LINES.sub(r'\1"', r'n0 [label="0: k<\"a\">\ngrid 1\naten::add", shape=box]; n1 [label="1: b"];') == (
        r'n0 [label="0: k<\"a\">", shape=box]; n1 [label="1: b"];'
    )


def test_pools_are_the_graphs_own(device):
    x = torch.ones(2, device=device)
    g = pianola.CUDAGraph()
    with pytest.raises(RuntimeError, match="Called CUDAGraph::pools\\(\\) without a preceding successful capture."):
        g.pools()
    with pianola.graph(g, device=device):
        x + 1
    assert g.pools() == [g.pool()]


def test_an_input_that_is_gone_is_refused_where_that_was_asked_for(device):
    kept, dropped = torch.ones(2, device=device), torch.ones(2, device=device)
    result, graphs = [], []
    for check in (False, True):
        graphs.append(pianola.CUDAGraph())
        with pianola.graph(graphs[-1], device=device, check_input_liveness=check):
            result.append(kept + dropped)
        graphs[-1].replay()
    del dropped
    graphs[0].replay()
    assert result[0].tolist() == [2.0, 2.0]
    with pytest.raises(pianola.ReplayError, match="nothing was launched"):
        graphs[1].replay()


def test_capture_begin_checks_inputs_too(device):
    x = torch.ones(2, device=device)
    g = pianola.CUDAGraph()
    with pianola.stream(pianola.Stream(device)):
        g.capture_begin(None, "relaxed", True, device=device)
        y = x * 2
        g.capture_end()
    g.replay()
    assert y.tolist() == [2.0, 2.0]
    del x
    with pytest.raises(pianola.ReplayError, match="nothing was launched"):
        g.replay()


def test_the_tape_has_no_graph_data():
    x = torch.zeros(2)
    g = captured(torch.device("cpu"), lambda: x.add_(1), keep_graph=True)
    with pytest.raises(pianola.UsageError, match="tells of nodes of CUDA, and the tape has none") as refused:
        g.get_graph_data()
    assert "debug_dump()" in refused.value.fix


def test_graph_data_is_read_as_torch_reads_it(monkeypatch):
    class Handles:
        def raw_cuda_graph(self):
            return 1

        def raw_cuda_graph_exec(self):
            return 2

    class Torchs:
        pass

    monkeypatch.setattr(_torch_abi, "_TorchsGraph", Torchs)
    assert _torch_abi.graph_data(Handles()) is None
    Torchs.get_graph_data = lambda graph: {"raw": (graph.raw_cuda_graph(), graph.raw_cuda_graph_exec())}
    assert _torch_abi.graph_data(Handles()) == {"raw": (1, 2)}


def test_graph_data_on_a_gpu():
    """Where driver and cuda-bindings are too old for torch, torch says so; a torch that cannot is named."""
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    x = torch.zeros(2, device="cuda")
    g = captured(x.device, lambda: x.add_(1), keep_graph=True)
    g.instantiate()
    try:
        data = g.get_graph_data()
    except RuntimeError as error:
        assert "cuda-bindings" in str(error) or "driver >= 13.1" in str(error) or "has no get_graph_data()" in str(error)
    else:
        assert len(data["nodes"]) == g.info().nodes
