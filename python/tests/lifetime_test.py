"""Graphs in forked children, at the end of the interpreter, in threads, and what is copied or pickled."""

import copy
import gc
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import weakref

import pytest
import torch

import pianola
from twins import MLP, assert_same


GRAPHS = """
import os, sys, torch, pianola
device = torch.device(sys.argv[1])
x = torch.ones(4, device=device)
g = pianola.CUDAGraph()
with pianola.graph(g, device=device):
    y = x + 1
model = pianola.make_graphed_callables(torch.nn.Linear(4, 4).to(device), (x,))
"""


def run_script(script, device, **environment):
    """A program of its own, which begins with GRAPHS; returns its output, fails if it crashes or hangs."""
    done = subprocess.run(
        [sys.executable, "-c", GRAPHS + textwrap.dedent(script), str(device)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | environment,
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_the_interpreter_may_end_with_graphs_alive(device):
    output = run_script(
        """
        auto = pianola.graphed(torch.nn.Linear(4, 4).to(device), warmup=1)
        out = [model(x), auto(x), auto(x), auto(x)]
        class Holder: pass
        holder = Holder(); holder.me = holder; holder.model = model; holder.graph = g
        print("done")
        """,
        device,
    )
    assert output.strip() == "done"


def test_a_graph_is_refused_in_a_forked_child(device):
    output = run_script(
        """
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            for call in (g.replay, lambda: model(x)):
                try:
                    call()
                    print("replayed")
                except pianola.UsageError as error:
                    print("refused:", str(error).splitlines()[0])
            del g, model
            print("child ends")
            sys.stdout.flush()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        g.replay()
        print("child", status, "parent", model(x).shape[0])
        """,
        device,
    )
    assert output.count("refused: replay() was called in a forked child") == 2
    assert "child ends" in output and "child 0 parent 4" in output and "replayed" not in output


def test_the_import_leaves_cuda_to_a_forked_child(device):
    program = f"""
import os
import pianola, torch
assert not torch.cuda.is_initialized()
child = os.fork()
if child == 0:
    x = torch.ones(4, device={device.type!r})
    step = pianola.graphed(lambda x: x * 2, warmup=3)
    results = [step(x).sum().item() for _ in range(6)]
    print(results, step.info().signatures[0].replays > 0, flush=True)
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert ran.stdout.splitlines() == ["[8.0, 8.0, 8.0, 8.0, 8.0, 8.0] True", "0"], ran.stderr


def test_data_loader_workers_may_fork_while_graphs_live(device):
    data = torch.utils.data.TensorDataset(torch.arange(32.0).reshape(16, 2))
    model = pianola.make_graphed_callables(torch.nn.Linear(2, 2).to(device), (torch.zeros(4, 2, device=device),))
    reference = copy.deepcopy(model.state_dict())
    for (batch,) in torch.utils.data.DataLoader(data, batch_size=4, num_workers=1):
        y = model(batch.to(device))
        assert_same("output", y, torch.nn.functional.linear(batch.to(device), reference["weight"], reference["bias"]))


def test_capture_beside_a_pinning_data_loader(device):
    data = torch.utils.data.TensorDataset(torch.randn(256, 16))
    # With a generator of its own: it draws a seed for each epoch, and a tape is refused if the default one moves meanwhile.
    loader = torch.utils.data.DataLoader(
        data, batch_size=8, num_workers=1, pin_memory=device.type == "cuda", generator=torch.Generator()
    )
    x = torch.randn(8, 16, device=device)
    errors = []

    def capture_many():
        try:
            for _ in range(5):
                model = MLP().to(device)
                graphed = pianola.make_graphed_callables(model, (x,))
                graphed(x).sum().backward()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=capture_many)
    thread.start()
    while thread.is_alive():
        for (batch,) in loader:
            batch.to(device, non_blocking=True)
    thread.join()
    assert not errors, errors


@pytest.mark.parametrize("graph_it", [lambda m, x: pianola.make_graphed_callables(m, (x,)), lambda m, x: pianola.graphed(m)])
def test_a_graphed_module_is_neither_copied_nor_pickled(device, graph_it):
    x = torch.randn(2, 16, device=device)
    model = graph_it(MLP().to(device), x)
    with pytest.raises(pianola.UsageError, match="cannot be deep-copied(.|\n)*state_dict"):
        copy.deepcopy(model)
    with pytest.raises(pianola.UsageError, match="cannot be pickled"):
        pickle.dumps(model)
    assert set(model.state_dict()) == set(MLP().state_dict())
    model.forward.reset()
    assert_same("copy", copy.deepcopy(model)(x), model(x))


def graph_of(device, pool):
    graph, x = pianola.Graph(device), torch.ones(4, device=device)
    graph.capture(lambda: x * 2, pool=pool)
    return graph


@pytest.mark.parametrize(
    "make",
    [graph_of, lambda device, pool: pool, lambda device, pool: pianola.FullIteration(lambda batch: batch[0] * 2, pool=pool)],
    ids=["graph", "pool", "iteration"],
)
def test_what_is_bound_to_memory_is_neither_copied_nor_pickled(device, make):
    pool = pianola.GraphPool(device)
    bound = make(device, pool)
    for copied, how in ((copy.copy, "copied"), (copy.deepcopy, "deep-copied"), (pickle.dumps, "pickled")):
        with pytest.raises(pianola.UsageError, match=f"a {type(bound).__name__} cannot be {how}: it is bound to this process(.|\n)*fix:"):
            copied(bound)


def callables(model, x):
    return pianola.make_graphed_callables(model, (x,))


def automatic(model, x):
    return pianola.graphed(model, warmup=1)


class Scaler:
    def __init__(self, model):
        self.model = model

    @pianola.graphed(warmup=1)
    def run(self, x):
        return self.model(x)


def method(model, x):
    return Scaler(model).run


@pytest.mark.parametrize("graph_it", [callables, automatic, method])
def test_a_model_goes_with_its_graphs_at_once_when_it_is_dropped(device, graph_it):
    """Not by the collector of cycles: by the time that it comes, dozens may be waiting, with all their memory."""
    x = torch.randn(2, 16, device=device)
    gc.disable()
    try:
        model = MLP().to(device)
        graphed = graph_it(model, x)
        for _ in range(3):
            graphed(x).sum().backward()
        gone = weakref.ref(model)
        del model, graphed
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("graph_it", [callables, automatic])
def test_the_forward_of_a_module_that_is_gone_says_so(device, graph_it):
    x = torch.randn(2, 16, device=device)
    forward = graph_it(MLP().to(device), x).forward
    with torch.no_grad(), pytest.raises(pianola.UsageError, match="object that a graphed method belongs to is gone(.|\n)*keep"):
        forward(x)


def test_a_graphed_method_keeps_its_object(device):
    x = torch.randn(2, 16, device=device)
    model = MLP().to(device)
    run = Scaler(model).run
    for _ in range(4):
        assert torch.equal(run(x), model(x))
    assert run.info().signatures[0].replays == 3


def test_other_threads_run_python_while_a_graph_replays():
    """On the tape, where a replay takes its time on the calling thread: with the GIL held, no other thread would tick."""
    x = torch.randn(1500, 1500)
    graph = pianola.Graph("cpu")
    graph.capture(lambda: x.mm(x).mm(x).mm(x), warmup=0)
    ticks, replaying, stop = [], threading.Event(), threading.Event()

    def tick():
        while not stop.wait(0.001):
            if replaying.is_set():
                ticks.append(1)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        replay = graph.replay
        replaying.set()
        replay()
        replaying.clear()
    finally:
        stop.set()
        thread.join()
    assert len(ticks) > 3


class Masks(threading.Thread):
    """Draws dropout masks from the default generator until it is told to stop."""

    def __init__(self, device):
        super().__init__(daemon=True)
        self.ones = torch.ones(256, device=device)
        self.drawn, self.stopped = [], threading.Event()

    def run(self):
        while not self.stopped.is_set() and len(self.drawn) < 5000:
            try:
                self.drawn.append(torch.nn.functional.dropout(self.ones, 0.5))
            except RuntimeError as error:  # torch, while a capture records on CUDA
                assert "Offset increment outside graph capture" in str(error)

    def finish(self):
        self.stopped.set()
        self.join()
        return [mask.cpu().numpy().tobytes() for mask in self.drawn]


def test_captures_never_make_another_thread_draw_a_mask_twice(device):
    x, kept = torch.randn(64, device=device), []
    masks = Masks(device)
    masks.start()

    def capture():
        graph = pianola.Graph(device)
        graph.capture(lambda: kept.append(torch.nn.functional.dropout(x, 0.5)), warmup=2)
        graph.replay()
        with pytest.raises(ValueError, match="mine"):
            pianola.Graph(device).capture(failing)

    def failing():
        torch.nn.functional.dropout(x, 0.5)
        raise ValueError("mine")

    for _ in range(40):
        capture()
        kept.clear()
    drawn = masks.finish()
    assert len(drawn) > 40 and len(set(drawn)) == len(drawn)


def test_a_capture_that_draws_nothing_leaves_the_numbers_of_other_threads_alone(device):
    torch.manual_seed(3)
    masks = Masks(device)
    expected = [torch.nn.functional.dropout(masks.ones, 0.5).cpu().numpy().tobytes() for _ in range(300)]
    torch.manual_seed(3)
    masks.start()
    x = torch.ones(64, device=device)
    while len(masks.drawn) < 300:
        pianola.Graph(device).capture(lambda: x.mul_(1))
    assert masks.finish()[:300] == expected


def test_a_step_that_seeds_is_refused_in_every_recording(device):
    """Also in the one whose number is the seed, which once marked it."""
    output = run_script(
        """
        def step():
            torch.manual_seed(9)
            x.add_(torch.nn.functional.dropout(torch.ones_like(x), 0.5))
        for recording in range(12):
            try:
                pianola.Graph(device).capture(step, warmup=0)
                print("captured", recording)
            except RuntimeError as error:
                print("refused")
        """,
        device,
    )
    assert output.split() == ["refused"] * 12
