"""torch.compile inside, around and under Pianola: the same bits as without a graph, the compiler asked no more often than without."""

import subprocess
import sys

import pianola
import pytest
import torch
from torch._dynamo.utils import counters

from compiling import NEEDS_A_COMPILER, fresh_compiler  # noqa: F401
from twins import MLP, assert_same, assert_same_state, batches, replays, twins


def compilations():
    return counters["stats"]["unique_graphs"]


def swish(x):
    return x * torch.sigmoid(x)


BACKENDS = ["eager", "aot_eager", pytest.param("inductor", marks=NEEDS_A_COMPILER)]


class Block(torch.nn.Module):
    """Statistics that the forward writes, random numbers, and settings that decide what is compiled."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)
        self.norm = torch.nn.BatchNorm1d(16)
        self.dropout = torch.nn.Dropout(0.25)
        self.gain = 1

    def forward(self, x):
        y = self.dropout(torch.tanh(self.norm(self.linear(x))))
        return y * 3 if self.gain > 1 else y


SETTINGS = {"shift": 1}


def shifted(x):
    return x + 2 if SETTINGS["shift"] > 1 else x


def make_step(model, backend, optimizer=torch.optim.AdamW):
    compiled, function = torch.compile(model, backend=backend), torch.compile(shifted, backend=backend)
    optimizer = optimizer(model.parameters(), lr=0.01)

    def step(x):
        optimizer.zero_grad()
        loss = function(compiled(x)).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_graphed_step_replays_compiled_code(backend, device):
    """The same bits as the compiled step without a graph, and no compilation more."""
    one, other = twins(Block(), device)
    plain, graphed = make_step(one, backend), pianola.graphed(make_step(other, backend))
    alike(plain, graphed, one, other, batches(2, (8, 16), device))
    compiled = counters["frames"]["ok"]
    alike(plain, graphed, one, other, batches(10, (8, 16), device))
    assert replays(graphed) >= 6, graphed.info()
    assert compiled > 0 and counters["frames"]["ok"] == compiled


def test_lanes_are_tried_in_compiled_code(device):
    """What a Triton kernel writes is known, so that a trial can be put back."""
    if device.type != "cuda":
        pytest.skip("the tape has no lanes")
    one, other = twins(MLP(), device)  # a Block counts its batches, maybe as an index
    plain, graphed = make_step(one, "inductor"), pianola.graphed(make_step(other, "inductor"))
    alike(plain, graphed, one, other, batches(12, (8, 16), device))
    tried = [one for known in graphed.info().signatures for one in known.branches]
    assert tried and all(one.automatic for one in tried)
    assert not any("a trial could" in one.reason for one in tried), [one.reason for one in tried]


def alike(plain, graphed, one, other, inputs):
    """Calls both in turn, on the same random numbers."""
    for i, x in enumerate(inputs):
        torch.manual_seed(i)
        wanted = plain(x)
        torch.manual_seed(i)
        assert_same(f"loss {i}", graphed(x), wanted)
        assert_same_state(one, other)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_was_compiled_for_other_settings_is_not_replayed(backend, device):
    """Dynamo reads settings when it compiles, and guards them: nobody sees Python read them at a call."""
    one, other = twins(Block(), device)
    plain, graphed = make_step(one, backend), pianola.graphed(make_step(other, backend))

    def run(count):
        alike(plain, graphed, one, other, batches(count, (8, 16), device))

    try:
        run(8)
        before = replays(graphed)
        assert before > 0
        for model in (one, other):
            model.gain = 2
        run(8)
        SETTINGS["shift"] = 2
        run(8)
        for model in (one, other):
            model.eval()
        run(8)
        assert replays(graphed) > before + 6
        for model in (one, other):
            model.train()
        run(4)
    finally:
        SETTINGS["shift"] = 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_code_under_autocast(backend, device):
    """Its guards hold under the modes of the place where it is called, not under those of the step's begin."""
    one, other = twins(MLP(), device)

    def make(model):
        compiled = torch.compile(model, backend=backend)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x):
            optimizer.zero_grad()
            with torch.autocast(device.type, dtype=torch.bfloat16):
                loss = compiled(x).float().square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    graphed = pianola.graphed(make(other))
    alike(make(one), graphed, one, other, batches(10, (8, 16), device))
    assert replays(graphed) >= 4, graphed.info()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("first", [lambda x: x, lambda x: 2 * x], ids=["argument", "made within"])
def test_compiled_code_in_inference_mode(first, backend, device):
    """What is made there has other keys than the argument has, which was made outside."""
    model = Block().to(device).eval()
    compiled = torch.compile(model, backend=backend)

    @torch.inference_mode()
    def predict(x):
        return compiled(first(x)).softmax(1)

    graphed = pianola.graphed(predict)
    for x in batches(10, (8, 16), device):
        assert_same("probabilities", graphed(x), predict(x))
    assert replays(graphed) >= 6, graphed.info()


@pytest.mark.parametrize("backend", BACKENDS)
def test_other_shapes_are_compiled_and_captured_by_themselves(backend, device):
    one, other = twins(MLP(), device)
    plain, graphed = make_step(one, backend), pianola.graphed(make_step(other, backend))
    for rows in (8, 12, 16, 8, 12, 16):
        alike(plain, graphed, one, other, batches(5, (rows, 16), device))
    assert replays(graphed) >= 15, graphed.info()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_graphed_compiled_module(backend, device):
    one, other = twins(MLP(), device)
    plain, graphed = torch.compile(one, backend=backend), torch.compile(other, backend=backend)
    reasons = []
    pianola.graphed(graphed, warmup=1, on_fallback=reasons.append)
    for x in batches(8, (8, 16), device):
        for model in (plain, graphed):
            model.zero_grad()
            model(x).sum().backward()
        assert_same_state(one, other)
    assert bool(reasons) == (backend != "eager"), reasons  # a capture of the forward alone runs other code than its calls: not settled


@pytest.mark.parametrize("backend", BACKENDS)
def test_iterations_and_callables(backend, device):
    compiled = torch.compile(swish, backend=backend)
    x, *others = batches(8, (8, 16), device)
    compiled(x)
    iteration = pianola.FullIteration(lambda batch: compiled(batch[0]), warmup=2)
    callable_ = pianola.make_graphed_callables(compiled, (x,))
    for y in others:
        assert_same("iteration", iteration([y]), compiled(y))
        assert_same("callable", callable_(y), compiled(y))
    assert compilations() == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_explicit_captures_take_code_that_is_there(backend, device):
    compiled = torch.compile(swish, backend=backend)
    x = batches(1, (8, 16), device)[0]
    compiled(x)
    graph, kept = pianola.Graph(device), []
    graph.capture(lambda: kept.append(compiled(x)))
    cuda_graph = pianola.CUDAGraph()
    with pianola.graph(cuda_graph, device=device):
        kept.append(compiled(x))
    x.normal_()
    graph.replay()
    assert_same("result", kept[-2], compiled(x))
    cuda_graph.replay()
    assert_same("result", kept[-1], compiled(x))
    assert compilations() == 1


@pytest.mark.parametrize("warmup", [0, 3])
def test_a_cold_compilation_in_a_capture_is_named(warmup):
    """On the tape, where compiling does not break the capture by itself."""
    x = torch.randn(8, 16)
    compiled = torch.compile(swish, backend="aot_eager")
    graph = pianola.Graph("cpu")
    with pytest.raises(pianola.CaptureError) as refused:
        graph.capture(lambda: compiled(x), warmup=warmup)
    error = refused.value
    assert "torch.compile compiles code while the step runs" in error.what and error.rule == "PG1005"
    assert "call it before" in error.fix and "compiled_test.py:" in error.where
    assert_same("result", compiled(x), swish(x))


def test_a_backward_pass_of_compiled_code_is_no_step_for_a_graph(device):
    weight = torch.ones(16, 16, device=device, requires_grad=True)
    compiled = torch.compile(lambda x: (x @ weight).sin().sum(), backend="aot_eager")
    reasons = []
    backward = pianola.graphed(lambda loss: loss[0].backward(), warmup=1, on_fallback=reasons.append)
    for x in batches(4, (8, 16), device):
        weight.grad = None
        backward([compiled(x)])
        expected = torch.autograd.grad((x @ weight).sin().sum(), weight)[0]
        assert_same("gradient", weight.grad, expected)
    assert reasons


def test_a_compiled_function_around_a_graphed_one(device):
    graphed = pianola.graphed(swish, warmup=1, on_fallback=lambda reason: None)

    @torch.compile(backend="eager")
    def outer(x):
        return graphed(x + 1) * 2

    for x in batches(5, (8, 16), device):
        assert_same("result", outer(x), swish(x + 1) * 2)


def test_code_with_graphs_of_its_own_stays_eager(device):
    if device.type != "cuda":
        pytest.skip("mode reduce-overhead makes graphs of CUDA's")
    compiled = torch.compile(swish, mode="reduce-overhead")
    reasons = []
    graphed = pianola.graphed(lambda x: compiled(x).clone(), warmup=1, on_fallback=reasons.append)
    for x in batches(5, (8, 16), device):
        torch.compiler.cudagraph_mark_step_begin()
        assert torch.allclose(graphed(x), swish(x))
    assert len(reasons) == 1 and "makes graphs of its own" in reasons[0] and "PG1005" in reasons[0], reasons


def test_compiled_code_outside_of_the_captured_part_is_nobodys_business(device):
    compiled = torch.compile(swish, backend="eager")
    graphed = pianola.graphed(lambda x: x + 1, warmup=1)
    for x in batches(5, (8, 16), device):
        assert_same("result", graphed(compiled(x)), swish(x) + 1)
    assert sum(one.replays for one in graphed.info().signatures) >= 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_calls_that_compile_are_no_warm_up(backend, device):
    """Neither the compilation is seen as the step's work, nor how torch looks at the first call of what it made."""
    model = MLP().to(device)
    graphed = pianola.graphed(make_step(model, backend))
    for x in batches(10, (8, 16), device):
        graphed(x)
    assert replays(graphed) >= 5, graphed.info()


class Settings:
    """What compiled code reads beside attributes of a module of one's own."""

    def __init__(self, device):
        self.gains = [1]
        self.chain = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU()).to(device)

    def step(self, backend):
        gains = self.gains

        def scaled(x):
            return x * 3 if gains[0] > 1 else x

        chain, function = torch.compile(self.chain, backend=backend), torch.compile(scaled, backend=backend)
        return lambda x: function(chain(x)).sum(1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_closures_and_modules_of_torchs_are_guarded(backend, device):
    settings = Settings(device)
    plain, graphed = settings.step(backend), pianola.graphed(settings.step(backend))
    with torch.no_grad():
        for turn in range(3):
            for x in batches(8, (8, 16), device):
                assert_same(f"turn {turn}", graphed(x), plain(x))
            settings.gains[0] += 1
            settings.chain[1] = torch.nn.Tanh()
    assert replays(graphed) >= 6, graphed.info()


def test_a_stance_of_the_compilers_is_obeyed(device):
    def asks(x):
        return x * 2 if torch.compiler.is_compiling() else x * 3

    compiled = torch.compile(asks, backend="aot_eager")
    graphed = pianola.graphed(lambda x: compiled(x) + 1)
    for x in batches(8, (8, 16), device):
        assert_same("compiled", graphed(x), x * 2 + 1)
    with torch.compiler.set_stance("force_eager"):
        for x in batches(4, (8, 16), device):
            assert_same("eager", graphed(x), x * 3 + 1)
    assert replays(graphed) >= 4


def test_code_of_a_backend_that_nobody_knows_stays_eager(device):
    def by_itself(graph, example):
        return lambda x: (torch.from_numpy(x.cpu().numpy() * 2).to(x.device),)

    compiled = torch.compile(swish, backend=by_itself)
    reasons = []
    graphed = pianola.graphed(lambda x: compiled(x) + 1, on_fallback=reasons.append)
    for x in batches(6, (8, 16), device):
        assert_same("result", graphed(x), x * 2 + 1)
    assert len(reasons) == 1 and "PG1005" in reasons[0], reasons


@NEEDS_A_COMPILER
def test_values_that_compiled_code_reads_keep_it_eager(device):
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(lambda x: (x > 0).sum().item())
        reasons = []
        graphed = pianola.graphed(lambda x: x * compiled(x), on_fallback=reasons.append)
        for x in batches(6, (8, 16), device):
            assert_same("result", graphed(x), x * (x > 0).sum())
    assert len(reasons) == 1, reasons


def test_a_compiled_step_of_an_optimizer_stays_eager(device):
    model = MLP().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    update = torch.compile(optimizer.step, backend="aot_eager")
    reasons = []

    @pianola.graphed(on_fallback=reasons.append)
    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        update()
        return loss.detach()

    for x in batches(6, (8, 16), device):
        step(x)
    assert len(reasons) == 1 and "compile the model alone" in reasons[0], reasons
    assert replays(step) == 0


AFTER_A_FAILURE = '''
import logging, sys
import pianola, torch

def logs(x):
    logging.getLogger("some").debug("called")
    return x * 2

try:
    torch.compile(logs, fullgraph=True)(torch.ones(2))
except Exception as error:
    print(type(error).__name__)
device = torch.device(sys.argv[1])
model = torch.nn.Linear(4, 4).to(device)
optimizer = torch.optim.AdamW(model.parameters())
model.register_buffer("mean", torch.zeros(4, device=device))

@pianola.graphed
def step(x):
    optimizer.zero_grad()
    y = model(x)
    loss = y.square().mean()
    loss.backward()
    optimizer.step()
    model.mean = 0.9 * model.mean + 0.1 * y.detach().mean(0)
    return loss.item()

for i in range(10):
    step(torch.full((2, 4), float(i), device=device))
print(sum(one.replays for one in step.info().signatures), [one.reason for one in step.info().signatures if one.reason])
'''


def test_a_compilation_that_failed_keeps_no_later_step_eager(device):
    """It leaves torch's evaluator of frames behind, under which each frame holds its arguments once more."""
    ran = subprocess.run([sys.executable, "-c", AFTER_A_FAILURE, device.type], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["Unsupported", "6 []"]
