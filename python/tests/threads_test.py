"""Several threads with one graph, captures that change threads, daemon threads at the end of the interpreter."""

import copy
import gc
import subprocess
import sys
import textwrap
import threading

import pytest
import torch

import pianola
from twins import MLP, assert_same


def on_another_thread(work):
    """What `work` returned or raised there."""
    outcome = []

    def run():
        try:
            outcome.append(work())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return outcome[0]


def run_script(script, device, *prefix):
    """A program of its own; returns its output, fails if it crashes, hangs or complains."""
    done = subprocess.run(
        [*prefix, sys.executable, "-c", textwrap.dedent(script), str(device)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
    assert "terminate" not in done.stderr and "FATAL" not in done.stderr and "Fatal" not in done.stderr, done.stderr
    return done.stdout


def test_a_capture_ends_on_the_thread_that_began_it():
    x = torch.randn(4)
    graph = pianola.CUDAGraph()
    graph.capture_begin(device="cpu")
    y = x * 2
    for call, name in ((graph.capture_end, "capture_end"), (graph.reset, "reset")):
        error = on_another_thread(call)
        assert isinstance(error, pianola.UsageError)
        assert f"{name}() was called on another thread than capture_begin()" in str(error) and "on one thread" in str(error)
    assert isinstance(on_another_thread(graph.replay), RuntimeError)
    assert isinstance(on_another_thread(lambda: graph.capture_begin(device="cpu")), RuntimeError)
    assert torch.is_tensor(x * 3)
    graph.capture_end()
    x.fill_(3)
    assert on_another_thread(graph.replay) is None
    assert_same("y", y, torch.full((4,), 6.0))


def test_a_capture_whose_thread_has_ended_is_refused_and_does_no_harm(capfd):
    x = torch.randn(4)
    before = x.clone()
    graph = pianola.CUDAGraph()

    def begin():
        graph.capture_begin(device="cpu")
        x.mul_(2)

    assert on_another_thread(begin) is None
    with pytest.raises(pianola.UsageError, match="another thread than capture_begin"):
        graph.capture_end()
    del graph, begin
    gc.collect()
    assert "a capture was dropped on another thread" in capfd.readouterr().err
    assert_same("x", x, before)
    other = pianola.CUDAGraph()
    with pianola.graph(other, device="cpu"):
        y = x + 1
    other.replay()
    assert_same("y", y, before + 1)


def test_two_threads_in_one_object_get_a_sentence(device):
    """Whoever comes second is refused, nothing crashes, and afterwards all is well."""
    x = torch.randn(2, 16, device=device)
    model = MLP().to(device)
    graph = pianola.Graph(device)
    graph.capture(lambda: model(x))
    eager = MLP().to(device)
    graphed = pianola.make_graphed_callables(copy.deepcopy(eager), (x,))
    losses = pianola.FullIteration(lambda batches: model(batches[0]).sum(), warmup=1)
    for _ in range(3):
        losses([x])
    sentences, wrong, calls = set(), [], {"ok": 0}

    def hammer(call):
        model(x)  # makes the thread's library handles, which no capture can
        for _ in range(150):
            try:
                call()
                calls["ok"] += 1
            except pianola.UsageError as error:
                sentences.add(str(error).splitlines()[0])
            except BaseException as error:
                wrong.append(error)

    def train():
        graphed(x).sum().backward()

    def infer():
        with torch.no_grad():
            losses([x])

    threads = [threading.Thread(target=hammer, args=(call,)) for call in (graph.replay, train, infer) * 2]
    threads.append(threading.Thread(target=hammer, args=(losses.reset,)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong
    assert calls["ok"] > 0
    assert all("one call at a time" in one or "whose slot a later call has taken" in one for one in sentences), sentences
    assert_same("callable", graphed(x).detach(), eager(x).detach())


def test_whoever_looks_at_the_memory_of_graphs_is_in_nobodys_way(device):
    model = MLP().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    @pianola.graphed
    def step(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    done, refused = threading.Event(), set()

    def look():
        while not done.is_set():
            try:
                pianola.memory_of_graphs(device)
            except pianola.UsageError as error:
                refused.add(str(error).splitlines()[0])

    onlooker = threading.Thread(target=look)
    onlooker.start()
    try:
        for _ in range(300):
            step(torch.ones(2, 16, device=device))  # which would raise
    finally:
        done.set()
        onlooker.join()
    assert all(one.startswith("memory() was called on a graph") for one in refused), refused


def test_a_replay_inside_a_capture_is_refused(device):
    x = torch.randn(4, device=device)
    inner = pianola.Graph(device)
    inner.capture(lambda: x.mul_(2))
    before = x.clone()
    outer = pianola.CUDAGraph()
    with pytest.raises(pianola.UsageError, match="replay\\(\\) was called while a capture is open(.|\n)*do not nest"):
        with pianola.graph(outer, device=device):
            y = x + 1
            inner.replay()
    del y
    assert_same("x", x, before)
    reasons = []

    @pianola.graphed(warmup=2, on_fallback=reasons.append)
    def step(z):
        inner.replay()
        return z + x

    for _ in range(5):
        assert_same("x", step(x.clone()), x + x / 2)
    assert reasons and "graphs do not nest" in reasons[0]


DAEMON = """
    import sys, threading, torch, pianola
    device = torch.device(sys.argv[1])
    x = torch.randn(WIDTH, WIDTH, device=device)
    graph = pianola.Graph(device)
    graph.capture(lambda: x.mm(x).relu().mm(x), warmup=1)
    started = threading.Event()

    def work():
        while True:
            try:
                graph.replay()
            except pianola.UsageError:
                pass
            started.set()

    for _ in range(2):
        threading.Thread(target=work, daemon=True).start()
        started.wait()
    print("done")
"""


@pytest.mark.parametrize("width", [4, 400])
def test_daemon_threads_that_replay_at_the_end_of_the_interpreter(device, width):
    """They make no tensors: torch aborts where one is computed, or dropped, by a daemon thread then."""
    for _ in range(3):
        assert run_script(DAEMON.replace("WIDTH", str(width)), device).strip() == "done"


NO_PROC = """
    import ctypes, os, sys
    if sys.argv[1].startswith("cuda"):  # which begins by reading /proc
        import torch
        torch.zeros(1, device=sys.argv[1])
    libc = ctypes.CDLL(None, use_errno=True)
    CLONE_NEWNS, MS_REC, MS_PRIVATE, MNT_DETACH = 0x20000, 0x4000, 0x40000, 2
    if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) or libc.umount2(b"/proc", MNT_DETACH):
        print("not allowed")
        sys.exit(0)
    assert not os.path.exists("/proc/self")
    import torch, pianola
    device = torch.device(sys.argv[1])
    x = torch.randn(4, 4, device=device)
    graph = pianola.Graph(device)
    graph.capture(lambda: setattr(graph, "y", x.mm(x).relu()))
    x.add_(1)
    graph.replay()
    assert torch.equal(graph.y, x.mm(x).relu())
    try:
        graph.reset()
        graph.capture(lambda: x.sum().item())
    except pianola.CaptureError as error:
        assert "aten::item" in str(error), error
    graph.capture(lambda: x.mul_(2))
    model = pianola.make_graphed_callables(torch.nn.Linear(4, 4).to(device), (x,))
    model(x).sum().backward()
    print("done")
"""


def test_captures_where_the_stack_cannot_be_unwound(device):
    output = run_script(NO_PROC, device).strip()
    if output == "not allowed":
        pytest.skip("needs the right to unmount /proc")
    assert output == "done"
