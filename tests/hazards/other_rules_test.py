"""Rules that no step of the corpus can show: they are about replays, about several graphs, about the machine.

Each is provoked through the package's public functions, and the error or the report has to carry its id.
"""

import os
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import pytest
import torch
from torch import nn

pianola = pytest.importorskip("pianola")


@pytest.fixture(params=["cpu", "cuda"])
def device(request):
    if request.param == "cuda" and not torch.cuda.is_available():
        if os.environ.get("PIANOLA_REQUIRE_CUDA") == "1":
            pytest.fail("PIANOLA_REQUIRE_CUDA is set, but torch sees no GPU")
        pytest.skip("no GPU")
    return torch.device(request.param, 0) if request.param == "cuda" else torch.device("cpu")


@pytest.fixture
def cuda():
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    return torch.device("cuda", 0)


def rule_of(work, kind=None):
    """The rule of the error that it raises."""
    with pytest.raises(kind or pianola.Error) as caught:
        work()
    assert f"[{caught.value.rule}]" in str(caught.value)
    return caught.value.rule


# --- At replay ---


def test_pg404_a_strict_replay_finds_that_a_tensor_from_outside_is_freed(device):
    box = {"x": torch.ones(1024, device=device)}
    y = torch.zeros(1024, device=device)
    graph = pianola.Graph(device)
    graph.capture(lambda: y.copy_(box["x"] * 2), check="strict", names={"x": box["x"]})
    graph.replay()
    box.clear()
    assert rule_of(graph.replay, pianola.ReplayError) == "PG404"


def test_pg401_a_strict_replay_finds_that_a_tensor_from_outside_got_other_memory(device):
    x, y = torch.ones(1024, device=device), torch.zeros(1024, device=device)
    graph = pianola.Graph(device)
    graph.capture(lambda: y.copy_(x * 2), check="strict", names={"x": x})
    graph.replay()
    x.data = torch.ones(1024, device=device)
    assert rule_of(graph.replay, pianola.ReplayError) == "PG401"


def test_pg402_a_strict_replay_finds_that_a_parameter_got_other_memory(device):
    model, y = nn.Linear(4, 4).to(device), torch.zeros(4, 4, device=device)
    graph = pianola.Graph(device)
    with torch.no_grad():
        graph.capture(lambda: y.copy_(model.weight * 2), check="strict", names=dict(model.named_parameters()))
    graph.replay()
    model.weight.data = torch.ones(4, 4, device=device)
    assert rule_of(graph.replay, pianola.ReplayError) == "PG402"


def test_pg909_a_replay_that_would_read_what_another_graph_of_the_pool_has_overwritten(cuda):
    x, kept = torch.ones(1 << 16, device=cuda), {}
    first, second, third = (pianola.Graph(cuda) for _ in range(3))

    def produce():
        kept["y"] = x * 2

    result = torch.zeros(1 << 16, device=cuda)
    first.capture(produce)
    second.capture(lambda: result.copy_(kept["y"] + 1), pool=first.pool())
    kept.clear()
    third.capture(lambda: kept.update(z=x * 3), pool=first.pool())
    first.replay()
    third.replay()
    assert rule_of(second.replay, pianola.ReplayError) == "PG909"
    first.replay()
    second.replay()
    assert torch.equal(result, x * 2 + 1)


def test_pg1105_a_microbatch_out_of_the_schedules_order(device):
    layers = (nn.Linear(4, 4).to(device), nn.Linear(4, 4).to(device))
    x = torch.randn(2, 4, device=device, requires_grad=True)
    functions = pianola.make_graphed_callables(layers, ((x,), (x,)), _order=[1, 2, -2, -1])
    assert rule_of(lambda: functions[1](x), pianola.ScheduleError) == "PG1105"


def test_pg907_a_second_forward_before_the_first_ones_backward(device):
    x = torch.randn(2, 4, device=device)
    layer = pianola.make_graphed_callables(nn.Linear(4, 4).to(device), (x,))
    first = layer(x)
    second = layer(x)
    assert rule_of(first.sum().backward) == "PG907"
    second.sum().backward()


# --- At capture ---


def test_pg908_a_capture_that_runs_out_of_memory(cuda):
    free, total = torch.cuda.mem_get_info(cuda)
    graph = pianola.Graph(cuda)
    rule = rule_of(lambda: graph.capture(lambda: torch.empty(2 * total, dtype=torch.uint8, device=cuda).zero_(), warmup=0),
                   pianola.CaptureError)
    assert rule == "PG908"
    graph.capture(lambda: torch.zeros(4, device=cuda))  # nothing is left of the failure


def test_pg1006_a_library_is_used_for_the_first_time_in_a_capture(cuda):
    """Where torch can make the library's handle in a capture, the graph has to be right."""
    program = textwrap.dedent("""
        import pianola, torch
        x, y = torch.eye(8, device="cuda") * 3, torch.zeros(8, 8, device="cuda")
        graph = pianola.Graph("cuda")
        try:
            graph.capture(lambda: y.copy_(x @ x), warmup=0)
        except pianola.CaptureError as error:
            print(error.rule)
        else:
            graph.replay()
            print(torch.equal(y, torch.eye(8, device="cuda") * 9))
    """)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert ran.stdout.strip() in ("PG1006", "True"), ran.stdout + ran.stderr


# --- Of the machine and of modules ---


def rules_found(step, **options):
    return {finding.rule for finding in pianola.audit(step, **options).findings}


def test_pg1102_an_nccl_that_cannot_be_captured(cuda, monkeypatch):
    import torch.distributed as dist

    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    try:
        x = torch.ones(4, device=cuda)

        def step():
            dist.all_reduce(x)

        assert "PG1102" not in rules_found(step)
        monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 8, 4))
        assert "PG1102" in rules_found(step)
    finally:
        dist.destroy_process_group()


class ScaledLinear(nn.Linear):
    """Looks as Transformer Engine's modules do: it keeps scales for FP8 in fp8_meta."""

    def __init__(self):
        super().__init__(4, 4)
        history = torch.zeros(16, 3)
        state = SimpleNamespace(scale=torch.ones(3), amax_history=history)
        self.fp8_meta = {"scaling_fwd": state, "recipe": "delayed"}
        self.fp8_initialized = True
        self.fp8 = False


def test_pg1009_a_module_with_fp8_state_runs_outside_fp8_autocast(device):
    model = nn.Sequential(ScaledLinear(), nn.ReLU()).to(device)
    x = torch.randn(2, 4, device=device)
    assert "PG1009" in rules_found(model, batches=[(x,)])
    assert "PG1009" not in rules_found(nn.Sequential(nn.Linear(4, 4), nn.ReLU()).to(device), batches=[(x,)])


# --- Whatever the cause ---


def test_pg1205_a_replay_that_computes_something_else_is_found_by_verify(device):
    calls = [0]
    x, total = torch.ones(4, device=device), torch.zeros(4, device=device)

    def factor():
        calls[0] += 1
        return float(calls[0])

    def step():
        total.add_(x * factor())

    report = pianola.verify(step, state={"x": x, "total": total}, reset=lambda: calls.__setitem__(0, 0))
    assert not report.ok
    assert "total" in str(report)
    assert total.tolist() == [0.0] * 4, "state is put back"
