"""pianola.profile and pianola.decide: a step recorded, analysed and judged."""

import gzip
import json

import pytest
import torch

import pianola


def training_step(device):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(4))).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.randn(8, 16, device=device)

    def step():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        return batch  # which nobody asks whether it is true

    return step


def test_a_step_is_recorded_and_judged(device):
    profile = pianola.profile(training_step(device), iterations=6)
    assert 3 <= profile.iterations <= 6  # slow ones at the beginning, over twice the median, are taken for warm-up
    assert profile.kernels >= 20
    assert 0 < profile.utilisation <= 1
    assert profile.iteration_us >= profile.busy_us > 0
    assert profile.unrecorded_us > 0 and profile.unrecorded_us != profile.iteration_us  # two measurements
    if device.type == "cpu":
        assert profile.verdict == "unknown"
        assert "There is no GPU work in this profile" in profile.headline
        assert profile.best is None
    else:
        assert profile.verdict == "graph"
        assert profile.best.expected_us * profile.best.speedup == pytest.approx(profile.unrecorded_us, rel=0.01)


def test_the_report_is_text_json_and_a_page(device):
    profile = pianola.profile(training_step(device), iterations=6)
    assert profile.headline in " ".join(str(profile).split())
    assert json.loads(profile.to_json())["verdict"] == profile.verdict
    assert profile.to_html().startswith("<!DOCTYPE html>")


def test_what_was_recorded_can_be_kept_and_judged_again(device, tmp_path):
    trace = tmp_path / "step.json"
    profile = pianola.profile(training_step(device), iterations=6, trace=trace)
    again = pianola.decide(trace)
    assert (again.kernels, again.iteration_us, again.unrecorded_us) == (profile.kernels, profile.iteration_us, profile.unrecorded_us)
    assert again.headline == profile.headline


def test_a_trace_whose_name_ends_in_gz_is_compressed(device, tmp_path):
    profile = pianola.profile(training_step(device), iterations=6, trace=tmp_path / "step.json.gz")
    with gzip.open(tmp_path / "step.json.gz", "rt") as trace:
        events = json.load(trace)["traceEvents"]
    assert sum(event["name"] == "pianola::profile step" and event.get("cat") == "user_annotation" for event in events) == 6
    assert pianola.decide(tmp_path / "step.json.gz").headline == profile.headline


def test_a_step_is_timed_before_it_is_recorded(device):
    runs, recorded = 0, 0

    def step():
        nonlocal runs, recorded
        runs += 1
        recorded += torch.autograd._profiler_enabled()
        training_step(device)()

    pianola.profile(step, warmup=2, iterations=4)
    assert (runs, recorded) == (2 + 4 + 4, 4)


MODULES = ["nn.Module: Sequential_0", *(f"nn.Module: Linear_{i}" for i in range(4))]


def test_modules_are_recorded_where_that_is_asked_for(device, tmp_path):
    file = tmp_path / "trace.json"
    report = pianola.profile(training_step(device), iterations=6, modules=True, trace=file).to_html()
    calls = [event["name"] for event in json.loads(file.read_text())["traceEvents"] if event.get("name") in MODULES]
    assert sorted(calls) == sorted(6 * MODULES)
    for name in MODULES:  # the text report names the regions that wait longest alone
        assert name.removeprefix("nn.Module: ") in report


MIB = 2**20


def doubling_step(device):
    values = torch.ones(MIB // 4, device=device)  # 1 MiB, which is there before

    def step():
        doubled = values + values
        return (doubled * 2).sum()  # two blocks of 1 MiB at a time, and a number

    return step


def test_memory_of_an_iteration_is_what_it_allocates_itself(device):
    profile = pianola.profile(doubling_step(device), iterations=6)
    assert 2 * MIB <= profile.own_bytes < 2 * MIB + 64 * 1024
    if device.type == "cpu":  # of which torch counts from the profiler's begin on only
        assert profile.allocated_bytes is None and profile.reserved_bytes is None
        assert profile.free_bytes is None and profile.cached_bytes is None
    else:
        assert profile.reserved_bytes >= profile.allocated_bytes >= 3 * MIB
        assert all(scope.pool_bytes for scope in profile.scopes if scope.expected_us)
        assert profile.scopes[-1].executable_bytes > 0
        assert profile.free_bytes > 0 and profile.scopes[-1].fits is True
        assert "It fits: a capture takes" in profile.scopes[-1].memory_verdict


def test_memory_is_unknown_where_it_is_not_recorded(device):
    profile = pianola.profile(doubling_step(device), iterations=6, memory=False)
    assert profile.own_bytes is None
    assert all(scope.pool_bytes is None for scope in profile.scopes)
    assert "no events of torch's allocator" in json.loads(profile.to_json())["notes"][-1]


def test_memory_in_a_trace_of_torch_is_read(device, tmp_path):
    step = doubling_step(device)
    with torch.profiler.profile(profile_memory=True) as profiler:
        for _ in range(6):
            with torch.profiler.record_function("a step"):
                step()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    profile = pianola.decide(tmp_path / "trace.json", range="a step")
    assert 2 * MIB <= profile.own_bytes < 2 * MIB + 64 * 1024


def test_an_option_out_of_range_is_named(device):
    with pytest.raises(pianola.UsageError, match="iterations must be 1 or more, got 0"):
        pianola.profile(training_step(device), iterations=0)
    with pytest.raises(pianola.UsageError, match="warmup must be 0 or more, got -1"):
        pianola.profile(training_step(device), warmup=-1)


def test_what_the_step_raises_arrives_and_ends_the_recording(device):
    def step():
        raise ValueError("out of data")

    with pytest.raises(ValueError, match="out of data"):
        pianola.profile(step, warmup=0)
    assert pianola.profile(training_step(device), iterations=6).kernels > 0  # no profiler was left active


def test_an_active_profiler_is_named(device):
    with torch.profiler.profile():
        with pytest.raises(pianola.UsageError, match="torch's profiler cannot record"):
            pianola.profile(training_step(device))


def test_a_step_that_does_nothing_is_said_to_do_nothing():
    with pytest.raises(pianola.UsageError, match="has no device work"):
        pianola.profile(lambda: None)


def test_a_missing_profile_is_named(tmp_path):
    with pytest.raises(pianola.UsageError, match="nowhere.json"):
        pianola.decide(tmp_path / "nowhere.json")


def trace_of_a_gpu(left_mib):
    """Of kernels that wait for their launches, 8 a step, in steps that are handed out 4 MiB each; and of what profile() found left."""
    events, host = [], 0.0

    def event(name, category, begin, duration, **args):
        pid, tid = (0, 7) if category == "kernel" else (1, 1)
        return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": begin, "dur": duration, "args": args}

    def memory(at, sign):
        args = {"Device Type": 1, "Device Id": 0, "Addr": 4096, "Bytes": sign * 4 * MIB, "Total Allocated": (8 + 2 * sign) * MIB,
                "Total Reserved": 20 * MIB}  # fmt: skip
        return {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": at, "args": args}

    for step in range(6):
        events.append(event("a step", "user_annotation", host, 790))
        events.append(memory(host + 1, 1))
        for kernel in range(8):
            correlation, at = 8 * step + kernel + 1, host + 10 + 90 * kernel
            events.append(event("cudaLaunchKernel", "cuda_runtime", at, 5, correlation=correlation))
            events.append(event(f"kernel_{kernel}", "kernel", at + 6, 4, device=0, stream=7, correlation=correlation))
        events.append(memory(host + 780, -1))
        host += 800
    left = [0, left_mib * MIB, 0, 0]
    device = {"id": 0, "name": "a GPU", "totalGlobalMem": 1024 * MIB}
    return {"schemaVersion": 1, "deviceProperties": [device], "pianolaMemoryLeft": left, "traceEvents": events}


def test_what_does_not_fit_is_not_advised(tmp_path):
    def decided(left_mib):
        (tmp_path / "trace.json").write_text(json.dumps(trace_of_a_gpu(left_mib)))
        return pianola.decide(tmp_path / "trace.json", range="a step")

    enough, short = decided(100), decided(2)
    assert enough.verdict == "graph" and enough.best.fits is True and enough.free_bytes == 100 * MIB
    assert "It fits: a capture takes 20.0 MiB of the driver" in enough.best.memory_verdict
    assert short.verdict == "leave" and short.best.fits is False
    assert "no graph fits into the memory that is left" in short.headline
    assert any("the driver has 2.0 MiB left" in obstacle for obstacle in short.obstacles)
    planned = decided(10)
    assert planned.best.fits is False and planned.best.planned_bytes == 4 * MIB and "unless plan_memory is set" in planned.headline
    assert any("Set plan_memory: its pool takes 4.0 MiB" in obstacle for obstacle in planned.obstacles)


def test_a_trace_of_torch_tells_what_torch_leaves_of_the_device(tmp_path):
    trace = trace_of_a_gpu(0)
    del trace["pianolaMemoryLeft"]
    (tmp_path / "trace.json").write_text(json.dumps(trace))
    profile = pianola.decide(tmp_path / "trace.json", range="a step")
    assert profile.free_bytes == (1024 - 20) * MIB and profile.cached_bytes == (20 - 6) * MIB
    assert "left to the driver, at most" in str(profile) and profile.best.fits is True
    del trace["deviceProperties"]
    (tmp_path / "trace.json").write_text(json.dumps(trace))
    profile = pianola.decide(tmp_path / "trace.json", range="a step")
    assert profile.free_bytes is None and profile.best.fits is None and profile.best.pool_bytes == 20 * MIB
    assert "pianola memory --scopes FILE.py:FUNCTION" in json.loads(profile.to_json())["notes"][-1]
