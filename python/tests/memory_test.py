"""`pianola.predict_memory`, and limits of memory."""

import copy
import functools
import json
import os
import subprocess
import sys

import pianola
import pytest
import torch
from layer_programs import Gpt, training_step, words
from pianola import _C
from torch import nn
from torch.nn import functional as F
from twins import assert_same


class Classifier(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AvgPool2d(8), nn.Flatten(), nn.Linear(256, 10))


def batch(device, seed=0, count=32):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 3, 32, 32, generator=generator)
    return x.to(device), torch.randint(10, (count,), generator=generator).to(device)


def forecast_of_training(device, **options):
    model = Classifier().to(device)
    step = training_step(model, torch.optim.AdamW(model.parameters()))
    return pianola.predict_memory(step, [batch(device)], device=device, **options)


def test_a_training_step_is_told_before_it_is_captured(device):
    forecast = forecast_of_training(device)
    activations = 2 * 32 * 16 * 32 * 32 * 4  # of the convolution and of the normalization, which both are kept
    assert activations < forecast.bound_bytes < 4 * activations
    assert forecast.bound_bytes <= forecast.planned_bytes <= forecast.pool_bytes <= forecast.handed_out_bytes + (24 << 20)
    parameters = sum(p.numel() * 4 for p in Classifier().parameters())
    assert forecast.copied_bytes >= 3 * parameters  # AdamW's averages, too
    assert forecast.at_peak[0].bytes >= forecast.at_peak[-1].bytes > 0 and "layer_programs.py" in forecast.peak_place
    assert sum(user.bytes for user in forecast.at_peak) == forecast.bound_bytes
    assert forecast.fits is (True if device.type == "cuda" else None)


def test_the_first_run_counts_if_it_is_looked_at(device):
    """It makes the optimizer's state, which stays."""
    assert forecast_of_training(device, warmup=0).left_bytes > forecast_of_training(device).left_bytes


def test_a_graphed_function_is_told_by_what_it_runs_not_by_its_replays(device):
    @pianola.graphed(warmup=1)
    def step(x):
        return (x @ x).relu().sum()

    x = torch.randn(256, 256, device=device)
    told = pianola.predict_memory(step.original, batches=[x], device=device)
    for _ in range(4):
        step(x)
    assert step.replays() > 0
    for forecast in (
        pianola.predict_memory(step, batches=[x], device=device),
        pianola.predict_buckets(step, batches=[(x,)], device=device).buckets[0],
    ):
        assert forecast.operations == told.operations
        assert forecast.bound_bytes == told.bound_bytes
    scopes = [pianola.predict_scopes(one, [x], device=device).scopes[-1] for one in (step, step.original)]
    assert scopes[0].pool_bytes == scopes[1].pool_bytes and scopes[0].scratch_bytes == scopes[1].scratch_bytes


def test_a_forecast_is_text_json_and_a_page(device):
    forecast = forecast_of_training(device)
    assert str(forecast) == forecast.to_text() and "in use at most" in str(forecast)
    told = json.loads(forecast.to_json())
    assert told["bound_bytes"] == forecast.bound_bytes and told["at_peak"][0]["bytes"] == forecast.at_peak[0].bytes
    page = forecast.to_html()
    assert page.startswith("<!DOCTYPE html>") and "layer_programs.py" in page


def test_buckets_share_what_they_free(device):
    model = Classifier().to(device)
    step = training_step(model, torch.optim.AdamW(model.parameters()))
    batches = [batch(device, count=count) for count in (32, 128, 64)]
    forecast = pianola.predict_buckets(step, (one for one in batches), device=device)
    alone = [pianola.predict_memory(step, [one], device=device) for one in batches]
    assert forecast.names == ["[32, 3, 32, 32], [32]", "[128, 3, 32, 32], [128]", "[64, 3, 32, 32], [64]"]
    for told, expected in zip(forecast.buckets, alone):
        assert told.bound_bytes == pytest.approx(expected.bound_bytes, rel=0.02)
    assert forecast.pools_bytes == sum(told.pool_bytes for told in forecast.buckets)
    largest = max(told.bound_bytes for told in forecast.buckets)
    assert largest <= forecast.shared_bytes <= largest * 1.1 + (12 << 20) < forecast.pools_bytes
    assert forecast.fits is (True if device.type == "cuda" else None) and forecast.fits_apart is forecast.fits
    told = json.loads(forecast.to_json())
    assert told["shared_bytes"] == forecast.shared_bytes and [one["bucket"] for one in told["buckets"]] == forecast.names
    assert str(forecast) == forecast.to_text() and forecast.verdict in str(forecast)


def test_what_a_step_returns_is_kept_for_each_bucket(device):
    sizes = [(torch.empty(count << 18, device=device),) for count in (8, 16)]
    forecast = pianola.predict_buckets(lambda x: x + x, sizes, device=device)
    assert forecast.input_bytes == 16 << 20, "the graphs share the largest"
    assert [one.left_bytes for one in forecast.buckets] == [8 << 20, 16 << 20]
    assert forecast.shared_bytes == 24 << 20


def test_the_pool_of_a_graph_is_as_it_was_told(device):
    if device.type == "cpu":
        pytest.skip("the tape keeps all results")
    model = Gpt(layers=4, size=256).to(device)
    ids = words(0, device, batch=64)

    def step():
        model.zero_grad()
        F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()

    forecast = pianola.predict_memory(step, device=device)
    graph = pianola.Graph(device)
    graph.capture(step)
    assert forecast.pool_bytes == pytest.approx(graph.info().pool_bytes, rel=0.05, abs=4 << 20)


def test_a_planned_pool_is_smaller_and_trains_alike(device):
    """Steps of a model as people write it: eager, in a graph, in one whose memory is planned, and in one on planned lanes."""

    def trained(options):
        torch.manual_seed(3)
        model = Gpt(layers=4, size=256).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ids = words(0, device, batch=64)

        def step():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            return loss

        graph, losses, holder = pianola.Graph(device), [], []
        if options is not None:
            graph.capture(lambda: holder.append(step()), **options)
        for i in range(6):
            ids.copy_(words(i, device, batch=64))
            torch.manual_seed(i)  # of the dropout
            losses.append(step().detach().clone() if options is None else (graph.replay(), holder[-1].detach().clone())[1])
        return [*losses, *model.state_dict().values()], graph.info() if options is not None else None

    eager, _ = trained(None)
    for_plain, plain = trained({})
    for_planned, planned = trained({"plan_memory": True})
    for_lanes, lanes = trained({"plan_memory": True, "branches": 4, "parallel": pianola.ParallelOptions(self_check=False)})
    for i, expected in enumerate(eager):
        assert_same(f"of the plain graph, {i}", for_plain[i], expected)
        assert_same(f"of the planned graph, {i}", for_planned[i], expected)
        assert_same(f"of the planned lanes, {i}", for_lanes[i], expected)
    if device.type == "cuda":
        assert 0 < planned.planned_bytes <= planned.pool_bytes < plain.pool_bytes
        assert lanes.branches.rebuilt and lanes.branches.lanes > 1
        assert lanes.planned_bound_bytes <= lanes.planned_bytes <= 1.03 * lanes.planned_bound_bytes + (2 << 20)
    else:
        assert planned.planned_bytes == 0


def test_other_tensors_keep_torchs_deleter_when_memory_was_planned(device):
    if device.type == "cpu":
        pytest.skip("nothing is planned there")
    x = torch.ones(1024, device=device)
    out = []
    graph = pianola.Graph(device)
    graph.capture(lambda: out.append(x * 2 + 1), plan_memory=True)
    graph.replay()
    after = torch.ones(8, device=device)
    assert all(torch._C._has_Standard_Deleter(one.untyped_storage()._cdata) for one in (x, after))
    assert out[-1].tolist() == [3.0] * 1024


def under(settings, program):
    """Runs it where torch's allocator has these settings."""
    return subprocess.run([sys.executable, "-c", "import torch, pianola\n" + program], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": settings})  # fmt: skip


SEVERAL_GRAPHS = """
for plan_memory in (False, True, False, True):
    x = torch.ones(1 << 20, device="cuda")
    out = []
    graph = pianola.Graph("cuda")
    graph.capture(lambda: out.append(((x * 2) + 1).sum()), plan_memory=plan_memory)
    graph.replay()
    assert out[-1].item() == 3 << 20
    del graph, out
print("as ever")
"""


AS_FORECAST = """
def step():
    for mib in (33, 39, 54, 8):
        scratch = torch.empty(mib << 18, device="cuda")
        del scratch
    return torch.empty(4 << 18, device="cuda").fill_(1)

graph, out = pianola.Graph("cuda"), []
forecast = pianola.predict_memory(step, device="cuda")
graph.capture(lambda: out.append(step()), warmup=2)
assert graph.info().pool_bytes == forecast.pool_bytes, (graph.info().pool_bytes, forecast.pool_bytes)
print(forecast.pool_bytes >> 20)
"""


@pytest.mark.parametrize(
    "settings, pool_mib",
    [
        ("expandable_segments:True", None),
        ("max_split_size_mb:32,roundup_power2_divisions:4", None),
        ("max_split_size_mb:32", None),
        ("roundup_power2_divisions:[256:1,512:2,>:4]", None),
        ("garbage_collection_threshold:0.5", 34 + 40 + 54),
        ("", 34 + 40 + 54),
    ],
)
def test_graphs_under_settings_of_torchs_allocator(device, settings, pool_mib):
    """They replay as ever, and take what was foretold."""
    if device.type == "cpu":
        pytest.skip("they are of CUDA's")
    ran = under(settings, SEVERAL_GRAPHS + AS_FORECAST)
    lines = ran.stdout.split("\n")
    assert lines[0] == "as ever", ran.stderr
    assert lines[1] == str(pool_mib) or (pool_mib is None and int(lines[1]) > 50), ran.stderr


def test_expandable_segments_refuse_a_pool_that_sleeps(device):
    if device.type == "cpu":
        pytest.skip("they are of CUDA's")
    ran = under("expandable_segments:True", "torch.ones(1).cuda(); pianola.GraphPool('cuda', can_sleep=True)")
    assert "has segments of its own, which torch refuses with expandable_segments" in ran.stderr


@pytest.mark.parametrize(
    "call, says",
    [
        ("pianola.Graph('cuda').capture(step)", "graphs need pools of memory, and torch's allocator cudaMallocAsync has none"),
        ("pianola.GraphPool('cuda')", "graphs need pools of memory, and torch's allocator cudaMallocAsync has none"),
        ("pianola.GraphPool('cuda', can_sleep=True)", "a pool that sleeps needs torch's native allocator of CUDA memory"),
        ("pianola.GraphPool('cuda', plan_memory=True)", "graphs need pools of memory, and torch's allocator cudaMallocAsync has none"),
        ("pianola.predict_memory(step, device='cuda')", "cannot be watched: another allocator is in the place of torch's"),
        ("iteration = pianola.FullIteration(lambda x: x * 2); [iteration(torch.ones(2, device='cuda')) for _ in range(5)]",
         "graphs need pools of memory, and torch's allocator cudaMallocAsync has none"),
        ("pianola.make_graphed_callables(torch.nn.Linear(2, 2).cuda(), (torch.ones(2, 2, device='cuda'),))",
         "graphs need pools of memory, and torch's allocator cudaMallocAsync has none"),
    ],
)  # fmt: skip
def test_torchs_other_allocator_is_refused_in_words(device, call, says):
    if device.type == "cpu":
        pytest.skip("it is CUDA's")
    ran = under("backend:cudaMallocAsync", f"torch.ones(1).cuda()\nstep = lambda: torch.ones(2, device='cuda')\n{call}")
    assert "UnsupportedError: " in ran.stderr and says in ran.stderr, ran.stderr
    assert "leave backend:cudaMallocAsync out of PYTORCH_CUDA_ALLOC_CONF" in ran.stderr


def test_graphed_calls_under_torchs_other_allocator_stay_eager_and_say_why(device):
    if device.type == "cpu":
        pytest.skip("it is CUDA's")
    program = """
told = []
double = pianola.graphed(lambda x: x * 2, on_fallback=told.append)
for i in range(6):
    assert double(torch.full((2,), float(i), device="cuda")).tolist() == [2.0 * i] * 2
print(len(told), told[0])
"""
    ran = under("backend:cudaMallocAsync", program)
    assert ran.stdout.startswith("1 ") and "torch's allocator cudaMallocAsync has none" in ran.stdout, ran.stderr


class RunsOut:
    """A step that trains, and that lacks memory the first `times` that it is captured; and its eager twin."""

    def __init__(self, device, times=1):
        torch.manual_seed(4)
        self.model = Classifier().to(device)
        self.twin = copy.deepcopy(self.model)
        self.step = training_step(self.model, torch.optim.SGD(self.model.parameters(), lr=0.1))
        self.eager = training_step(self.twin, torch.optim.SGD(self.twin.parameters(), lr=0.1))
        self.times = times

    def __call__(self, x, y):
        loss = self.step(x, y)
        if _C.is_recording() and self.times > 0:
            self.times -= 1
            raise torch.OutOfMemoryError("says the test")
        return loss

    def check_alike(self, when):
        for name, value in self.model.state_dict().items():
            assert_same(f"{name} {when}", value, self.twin.state_dict()[name])


def test_a_graph_whose_step_lacks_memory_raises_torchs_error_and_is_captured_next(device):
    runs_out = RunsOut(device, times=2)
    x, y = batch(device)
    graph, losses = pianola.Graph(device), []
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError, match="says the test"):
            graph.capture(lambda: runs_out(x, y))
        runs_out.check_alike("after the failure")
    graph.capture(lambda: losses.append(runs_out(x, y)))
    for i in range(3):
        graph.replay()
        assert_same(f"loss {i}", losses[-1], runs_out.eager(x, y))
        runs_out.check_alike(f"after replay {i}")


# What the step counts on the host belongs to the signature of its calls: behind the failure they are others'.
def test_an_iteration_whose_step_lacks_memory_raises_torchs_error_and_is_captured_later(device):
    runs_out = RunsOut(device)
    iteration = pianola.FullIteration(lambda inputs: runs_out(*inputs))
    for i in range(10):
        inputs = batch(device, i)
        if i == 3:
            with pytest.raises(torch.OutOfMemoryError, match="says the test"):
                iteration(inputs)
            runs_out.check_alike("after the failure")
        assert_same(f"loss {i}", iteration(inputs), runs_out.eager(*inputs))
        runs_out.check_alike(f"after iteration {i}")
    assert iteration.info().signatures[0].replays == 4


def test_a_call_of_a_step_that_lacks_memory_is_eager_and_says_why(device):
    runs_out, told = RunsOut(device), []
    graphed = pianola.graphed(runs_out, on_fallback=told.append)
    for i in range(10):
        inputs = batch(device, i)
        assert_same(f"loss {i}", graphed(*inputs), runs_out.eager(*inputs))
        runs_out.check_alike(f"after call {i}")
        if i == 3:
            assert graphed.info().signatures[0].state == "eager"
    assert len(told) == 1 and "says the test" in told[0]
    assert graphed.info().signatures[0].replays == 3


OUT_OF_MEMORY = """
class Large(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1 << 20, device="cuda"))
    def forward(self, x):
        return ((x.expand(64, -1) * self.weight) * 2 + 1).sum()

net, x, told = Large(), torch.ones(1 << 20, device="cuda"), []
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

def step(x):
    optimizer.zero_grad()
    loss = net(x)
    loss.backward()
    optimizer.step()
    return loss

def fill():
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (96 << 20)) / total)

def free():
    torch.cuda.set_per_process_memory_fraction(1.0)
"""


@pytest.mark.parametrize(
    "attempt",
    [
        "graph = pianola.Graph('cuda'); attempt = lambda: graph.capture(lambda: step(x), warmup=0)",
        "graph = pianola.Graph('cuda'); attempt = lambda: graph.capture(lambda: step(x), warmup=1, plan_memory=True)",
        "attempt = lambda: pianola.make_graphed_callables(net, (x,))",
        "iteration = pianola.FullIteration(step); [iteration(x) for _ in range(3)]; attempt = lambda: iteration(x)",
        "iteration = pianola.FullIteration(step, plan_memory=True); [iteration(x) for _ in range(3)]; attempt = lambda: iteration(x)",
    ],
)
def test_whatever_captures_lacks_memory_by_torchs_name(device, attempt):
    """On a device that is full. Nothing is lost, three times over; then it works."""
    if device.type == "cpu":
        pytest.skip("it fills a GPU")
    program = OUT_OF_MEMORY + f"""
step(x)
{attempt}
before = net.weight.detach().clone()
fill()
sizes = []
for _ in range(3):
    try:
        attempt()
        print("nothing was raised")
    except torch.OutOfMemoryError:
        pass
    assert torch.equal(net.weight, before)
    torch.cuda.synchronize()
    sizes.append(torch.cuda.memory_allocated())
assert sizes[1] == sizes[2], sizes
free()
attempt()
print("as ever")
"""
    ran = under("", program)
    assert ran.stdout.strip() == "as ever", ran.stdout + ran.stderr


@pytest.mark.parametrize("way", ["graphed", "iteration"])
def test_whole_steps_that_capture_themselves_plan_too(device, way):
    model, twin = Classifier().to(device), Classifier().to(device)
    twin.load_state_dict(model.state_dict())
    step = training_step(model, torch.optim.AdamW(model.parameters()))
    eager = training_step(twin, torch.optim.AdamW(twin.parameters()))
    if way == "graphed":
        graphed = pianola.graphed(step, plan_memory=True)
        for i in range(12):
            count = 8 if i % 3 else 24
            assert_same(f"call {i}", graphed(*batch(device, i, count)), eager(*batch(device, i, count)))
        assert sum(one.replays for one in graphed.info().signatures) >= 4
    else:
        iteration = pianola.FullIteration(lambda inputs: step(*inputs), plan_memory=True)
        for i in range(8):
            assert_same(f"iteration {i}", iteration(batch(device, i)), eager(*batch(device, i)))
        assert iteration.info().signatures[0].replays >= 4
    for name, value in model.state_dict().items():
        assert_same(name, value, twin.state_dict()[name])


def test_a_limit_is_an_error_that_answers_to_torchs_name(device):
    model = Classifier().to(device)
    x, y = batch(device)
    step = training_step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    graph = pianola.Graph(device)
    with pytest.raises(torch.OutOfMemoryError, match="a graph's pool would take .* and memory_limit is 1.0 MiB; nothing was recorded"):
        graph.capture(lambda: step(x, y), memory_limit=1 << 20)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    graph.capture(lambda: step(x, y), memory_limit=1 << 30)
    graph.replay()


def test_calls_of_a_graphed_step_that_would_take_too_much_stay_eager(device):
    told = []
    model, twin = Classifier().to(device), Classifier().to(device)
    twin.load_state_dict(model.state_dict())
    step = pianola.graphed(training_step(model, torch.optim.SGD(model.parameters(), lr=0.1)), memory_limit=30 << 20, on_fallback=told.append)
    eager = training_step(twin, torch.optim.SGD(twin.parameters(), lr=0.1))
    for i in range(8):
        for count in (8, 256):
            assert_same(f"call {i} of {count}", step(*batch(device, i, count)), eager(*batch(device, i, count)))
    large, small = step.info().signatures
    assert small.state == "captured" and small.replays == 5, small.reason
    assert large.state == "eager" and "memory_limit is 30.0 MiB; nothing was recorded" in large.reason
    assert len(told) == 1 and "a graph's pool would take" in told[0]


@pytest.mark.parametrize("fallback", [False, True])
def test_an_iteration_that_would_take_too_much_is_no_graph(device, fallback):
    model = Classifier().to(device)
    step = training_step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    told = []
    iteration = pianola.FullIteration(lambda inputs: step(*inputs), memory_limit=1 << 20, eager_fallback=fallback, on_fallback=told.append)
    for i in range(3):
        iteration(batch(device, i))
    if fallback:
        iteration(batch(device, 3))
        assert "memory_limit is 1.0 MiB" in told[0]
        return
    with pytest.raises(torch.OutOfMemoryError, match="a graph's pool would take .*, and memory_limit is 1.0 MiB"):
        iteration(batch(device, 3))


@pytest.mark.parametrize("way", ["graph", "graphed", "iteration", "fallback"])
def test_a_limit_below_what_the_static_inputs_take_is_refused(device, way):
    x = torch.ones(1 << 21, device=device)  # 8 MiB, of which the step uses little
    says = "the static inputs of a graph take 8.0 MiB by themselves, and memory_limit is 4.0 MiB; nothing was recorded"

    def step(x):
        return x[:8].sum()

    with torch.no_grad():
        if way == "graph":
            with pytest.raises(torch.OutOfMemoryError, match=says):
                pianola.Graph(device).capture(lambda: step(x), inputs=[x], memory_limit=4 << 20)
            return
        if way == "iteration":
            iteration = pianola.FullIteration(step, memory_limit=4 << 20)
            for _ in range(3):
                iteration(x)
            with pytest.raises(torch.OutOfMemoryError, match=says):
                iteration(x)
            return
        told = []
        make = pianola.graphed if way == "graphed" else functools.partial(pianola.FullIteration, eager_fallback=True)
        call = make(step, memory_limit=4 << 20, on_fallback=told.append)
        for _ in range(6):
            assert call(x).item() == 8.0
        assert len(told) == 1 and says in told[0]


def test_a_limit_that_is_kept_changes_nothing(device):
    model = Classifier().to(device)
    net = pianola.graphed(model, memory_limit=1 << 30)
    for i in range(6):
        net(batch(device, i)[0]).square().mean().backward()
    assert net.forward.info().signatures[0].replays == 3


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: pianola.predict_memory(3), "predict_memory\\(\\) was given a int, which cannot be called"),
        (lambda: pianola.predict_memory(lambda: None, warmup=-1), "warmup must be 0 or more"),
        (lambda: pianola.predict_memory(lambda x: x, []), "batches is empty"),
        (lambda: pianola.predict_buckets(3, [1]), "predict_buckets\\(\\) was given a int, which cannot be called"),
        (lambda: pianola.predict_buckets(lambda x: x, []), "batches is empty"),
        (lambda: pianola.predict_buckets(lambda x: x, torch.ones(2)), "batches must be a list"),
        (lambda: pianola.predict_buckets(lambda x: x, [1], warmup=-1), "warmup must be 0 or more"),
        (lambda: pianola.predict_buckets(lambda x: x, None), "predict_buckets\\(\\) was given no batches"),
        (lambda: pianola.Graph("cpu").capture(lambda: None, warmup=0, memory_limit=5), "memory_limit needs a warm-up run"),
        (lambda: pianola.Graph("cpu").capture(lambda: None, warmup=0, plan_memory=True), "plan_memory needs a warm-up run"),
        (lambda: pianola.graphed(lambda x: x, branches=4, plan_memory=True)(torch.ones(2)), "which branches = 4 does not keep"),
    ],
)
def test_what_cannot_be_told_is_refused(cpu, call, message):
    with pytest.raises(pianola.UsageError, match=message):
        call()


def test_what_the_step_raises_comes_out(device):
    def step():
        torch.ones(4, device=device)
        raise KeyError("the step's own")

    with pytest.raises(KeyError, match="the step's own"):
        pianola.predict_memory(step, device=device)


def test_lines_that_were_typed_in_are_named(cpu):
    typed = "import torch, pianola\ndef step():\n  return torch.ones(512).relu()\n\nprint(pianola.predict_memory(step, device='cpu'))\n"
    result = subprocess.run([sys.executable, "-"], input=typed, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "aten::relu, step at <stdin>:3" in result.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_the_program_says_that_there_is_no_cuda_device(tmp_path):
    script = tmp_path / "step.py"
    script.write_text("def step():\n    pass\n")
    command = [sys.executable, "-m", "pianola", "memory", "--device", "cuda", f"{script}:step"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr == "pianola: there is no CUDA device to run on\n  fix:   use --device cpu, or see what 'pianola info' finds\n"


def test_graphs_inside_of_a_graphed_function_have_their_account(device):
    before = len(pianola.memory_of_graphs(device))
    model = Classifier().to(device)
    graphed = pianola.graphed(training_step(model, torch.optim.AdamW(model.parameters())))
    for i in range(8):
        graphed(*batch(device, i))
    made = pianola.memory_of_graphs(device)[before:]
    assert made and all(one.pool.bytes == one.pool.held + one.pool.scratch + one.pool.fragments for one in made)
    assert made[0].blocks > 20 and "layer_programs.py" in str(made[0])
    assert "<canvas" in made[0].to_html()
    pools = pianola.memory(device).pools
    assert {pool.id for pool in pools} >= {one.pool.id for one in made}
    assert sum(pool.graphs for pool in pools) >= len(made)
    graphed.forget_graphs()
    assert len(pianola.memory_of_graphs(device)) == before


def test_an_account_is_told_as_text_and_as_json(device):
    graph = pianola.Graph(device)
    x = torch.ones(1 << 18, device=device)
    graph.capture(lambda: x * 2 + 1, inputs=[x])
    account = graph.memory()
    assert account.input_bytes == 1 << 20 and account.device == device
    assert json.loads(account.to_json())["pool_bytes"] == account.pool.bytes
    assert "held by tensors" in str(account)
    process = pianola.memory(device)
    assert json.loads(process.to_json())["pools"] and "Pools of graphs" in str(process)
    graph.reset()
    with pytest.raises(pianola.UsageError, match=r"memory\(\) was called on a graph that holds no capture"):
        graph.memory()


def test_what_a_watch_saw_adds_up_to_what_the_driver_says(device):
    """In a process of its own: before CUDA is first used."""
    script = f"""
import pianola, torch
with pianola.watch_memory("{device}"):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(64 * 30 * 30, 10)).to("{device}")
    optimizer = torch.optim.AdamW(model.parameters())
    def step(x):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    graphed = pianola.graphed(step)
    for _ in range(8):
        graphed(torch.ones(64, 3, 32, 32, device="{device}"))
memory = pianola.memory("{device}")
print(memory)
if memory.used_bytes is None:
    assert not memory.watched
else:
    kinds = [one.what for one in memory.watched]
    assert "cuDNN" in kinds and "cuBLAS" in kinds and "kernels" in kinds, kinds
    assert abs(memory.rest_bytes) <= memory.used_bytes / 100
assert memory.pools
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
