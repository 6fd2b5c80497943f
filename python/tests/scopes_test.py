"""The benchmarks `cpu/python_scopes` and `cuda/python_scopes`: their rows are checked, and one that fails says why."""

import dataclasses
import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCH = Path(__file__).resolve().parents[2] / "bench/python"
sys.path.insert(0, str(BENCH))
from scopes import contenders, rows  # noqa: E402
from scopes.contenders import Contender, Prepared  # noqa: E402
from scopes.workloads import Training, workloads  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread():
    """The models are too small for more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def quick(device):
    return rows.Settings(device).quick()


def with_rows(monkeypatch, *others):
    """Makes the table of these contenders after eager."""
    eager = contenders.contenders(torch.device("cpu"))[0]
    monkeypatch.setattr(rows, "contenders", lambda device: [eager, *others])


def eagerly(training, batches):
    contenders._train(training.step, batches)
    return Prepared(training.step)


def measured(device, settings):
    return rows.measure(workloads(device, quick=True), settings)


def test_all_ways_are_timed(device):
    owners = ["none", "pianola", "pianola", "pianola"]
    if device.type == "cuda":
        owners = ["none", "torch", "pianola", "torch", "pianola", "torch", "pianola"]
    tables = measured(device, quick(device))
    assert [table.workload.name for table in tables] == ["mlp", "transformer"]
    for table in tables:
        assert [row.contender.owner for row in table.rows] == owners
        for row in table.complete:
            assert all(0 < host <= wall for host, wall in zip(row.host, row.wall, strict=True))
            assert all(time >= rest >= 0 for time, rest in zip(row.self_cpu, row.self_cpu_without_waits, strict=True))
        assert len(table.complete) == len(owners) and table.rows[0].self_cpu[0] > 0


def test_the_benchmark_leaves_cases_and_traces(tmp_path):
    ran = subprocess.run([sys.executable, BENCH / "main.py", "cpu/python_scopes", "--quick", "--out", tmp_path],
                         capture_output=True, text=True)  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    (result,) = json.loads((tmp_path / "cpu_python_scopes.json").read_text())["results"]
    assert len(result["cases"]) == 8
    for case in result["cases"]:
        assert [one["contender"] for one in case["contenders"]] == ["no graph", *(
            f"pianola.{api}" for api in ("FullIteration, whole iteration", "make_graphed_callables, whole model",
                                         "make_graphed_callables, per submodule"))]  # fmt: skip
    assert (tmp_path / "scopes/mlp_iteration_pianola.json.gz").exists()


def test_each_row_has_a_trace_that_is_readable(tmp_path, device):
    (table, _) = measured(device, dataclasses.replace(quick(device), traces=tmp_path))
    assert table.row("iteration", "pianola").trace.name == "mlp_iteration_pianola.json.gz"
    for row in table.rows:
        with gzip.open(row.trace, "rt") as file:
            assert json.load(file)["traceEvents"]


def test_a_row_that_fails_does_not_take_the_others_with_it(monkeypatch, device):
    def fails(training, batches):
        raise RuntimeError("no graph today")

    with_rows(monkeypatch, Contender("iteration", "torch", "graphs.that_fail", fails),
              Contender("model", "pianola", "graphs.that_work", eagerly))  # fmt: skip
    (table, _) = measured(device, quick(device))
    assert [row.error for row in table.rows] == ["", "RuntimeError: no graph today", ""]
    assert [bool(row.wall) for row in table.rows] == [True, False, True]


def test_a_row_that_fails_while_it_is_timed_is_an_error_of_that_row(monkeypatch, device):
    def breaks_later(training, batches):
        losses = []

        def step(x, target):
            if len(losses) == contenders.WARMUP + rows._CHECKED_STEPS:
                raise RuntimeError("out of memory")
            losses.append(training.step(x, target))
            return losses[-1]

        contenders._train(step, batches)
        return Prepared(step)

    with_rows(monkeypatch, Contender("model", "pianola", "breaks", breaks_later))
    (table, _) = measured(device, quick(device))
    assert [bool(row.error) for row in table.rows] == [False, True]
    assert table.rows[1].error == "RuntimeError: out of memory"


def test_a_row_that_computes_something_else_is_not_timed(monkeypatch, device):
    def skips_the_optimizer(training, batches):
        contenders._train(training.step, batches)
        training.optimizer.step = lambda: None
        return Prepared(training.step)

    with_rows(monkeypatch, Contender("model", "torch", "wrong", skips_the_optimizer))
    (table, _) = measured(device, quick(device))
    assert "differs from eager's after step 4: times of wrong results mean nothing" in table.rows[1].error
    assert table.rows[1].wall == []


def test_a_row_without_a_graph_is_not_timed(monkeypatch, device):
    def not_replayed(training, batches):
        return dataclasses.replace(eagerly(training, batches), is_replayed=lambda: False)

    with_rows(monkeypatch, Contender("iteration", "pianola", "eager after all", not_replayed))
    (table, _) = measured(device, quick(device))
    assert "the steps went through no graph: these would be eager's times" in table.rows[1].error
    assert table.rows[1].wall == []


def test_models_begin_with_the_same_weights_and_leave_random_numbers_alone(device):
    state = torch.get_rng_state()
    (workload, _) = workloads(device, quick=True)
    one, other = Training(workload), Training(workload)
    assert all(map(torch.equal, one.model.parameters(), other.model.parameters()))
    one.step(*workload.batches[0])
    assert not any(map(torch.equal, one.model.parameters(), other.model.parameters()))
    assert torch.equal(torch.get_rng_state(), state)
