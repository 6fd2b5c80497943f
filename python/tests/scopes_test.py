"""`python -m pianola bench scopes`: the table is made of checked rows, and says what keeps it from being made."""

import dataclasses
import gzip
import json
import os
import runpy
import subprocess
import sys

import pytest
import torch

import _pianola_program
from pianola.benchmarking import command, contenders, report, scopes
from pianola.benchmarking.contenders import Contender, Prepared
from pianola.benchmarking.workloads import Training, workloads


@pytest.fixture(autouse=True)
def threads():
    """The command sets their number for its own process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def quick(device):
    return scopes.Settings(device).quick()


def with_rows(monkeypatch, *rows):
    """Makes the table of these contenders after eager."""
    eager = contenders.contenders(torch.device("cpu"))[0]
    monkeypatch.setattr(scopes, "contenders", lambda device: [eager, *rows])


def eagerly(training, batches):
    contenders._train(training.step, batches)
    return Prepared(training.step)


def test_the_command_prints_the_table_and_leaves_it_with_traces(device, tmp_path, capsys):
    assert command.run(["--device", device.type, "--quick", "--out", str(tmp_path / "new")]) == 0
    text = capsys.readouterr().out
    document = json.loads((tmp_path / "new" / "scopes.json").read_text())
    assert [table["model"] for table in document["tables"]] == ["mlp", "transformer"]
    owners = ["none", "pianola", "pianola", "pianola"]
    if device.type == "cuda":
        owners = ["none", "torch", "pianola", "torch", "pianola", "torch", "pianola"]
    for table in document["tables"]:
        assert table["title"] in text
        assert [row["owner"] for row in table["rows"]] == owners
        assert table["rows"][0]["self_cpu"]["median"] > 0
        for row in table["rows"]:
            assert row["api"] in text
            assert 0 < row["host"]["median"] <= row["wall"]["median"]
            assert row["self_cpu"]["median"] >= row["self_cpu_without_waits"]["median"] >= 0
            assert (row["speedup_over_eager"] is None) == (row["owner"] == "none")
            assert (row["speedup_over_torch"] is None) == (row["owner"] != "pianola" or device.type == "cpu")
    assert "pianola.FullIteration" in text and "torch " + torch.__version__ in text


def test_each_row_has_a_trace_that_is_readable(tmp_path, device):
    (table, _) = scopes.measure(workloads(device, quick=True), dataclasses.replace(quick(device), traces=tmp_path))
    assert table.row("iteration", "pianola").trace.name == "mlp_iteration_pianola.json.gz"
    for row in table.rows:
        with gzip.open(row.trace, "rt") as file:
            assert json.load(file)["traceEvents"]


def test_without_a_gpu_the_rows_of_torch_are_left_out_and_that_is_said(tmp_path, capsys):
    assert command.run(["--device", "cpu", "--quick", "--out", str(tmp_path)]) == 0
    note = "torch's graphs need a GPU: their rows are left out"
    assert note in capsys.readouterr().out
    document = json.loads((tmp_path / "scopes.json").read_text())
    assert note in document["notes"][0]
    assert not any("torch" in row["api"] for table in document["tables"] for row in table["rows"])


def test_a_machine_without_a_gpu_is_told_what_to_do():
    ran = subprocess.run([sys.executable, "-m", "pianola", "bench", "scopes"], capture_output=True, text=True,
                         env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})  # fmt: skip
    assert ran.returncode == 2
    assert "there is no CUDA device to compare scopes on, and a CUDA graph needs one" in ran.stderr
    assert "fix:   run on a machine with a GPU and a torch with CUDA, or add --device cpu" in ran.stderr
    assert ran.stdout == "" and "Traceback" not in ran.stderr


def test_an_option_out_of_range_is_named(capsys):
    assert command.run(["--device", "cpu", "--iterations", "0"]) == 2
    assert "pianola: --iterations must be 1 or more, got 0" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_named(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert command.run(["--device", "cpu", "--out", str(tmp_path / "file" / "folder")]) == 2
    message = capsys.readouterr().err
    assert f"cannot make the folder '{tmp_path}/file/folder': Not a directory" in message
    assert "fix:   name another one with --out" in message


def test_a_row_that_fails_does_not_take_the_others_with_it(monkeypatch, capsys, tmp_path):
    def fails(training, batches):
        raise RuntimeError("no graph today")

    with_rows(monkeypatch, Contender("iteration", "torch", "graphs.that_fail", fails),
              Contender("model", "pianola", "graphs.that_work", eagerly))  # fmt: skip
    assert command.run(["--device", "cpu", "--quick", "--out", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert "failed: graphs.that_fail, whole iteration: RuntimeError: no graph today" in said.out
    assert "pianola: 2 rows failed, see above" in said.err
    rows = json.loads((tmp_path / "scopes.json").read_text())["tables"][0]["rows"]
    assert rows[1]["error"] == "RuntimeError: no graph today"
    assert rows[2]["wall"]["median"] > 0


def test_a_row_that_fails_while_it_is_timed_is_an_error_of_that_row(monkeypatch, device):
    def breaks_later(training, batches):
        losses = []

        def step(x, target):
            if len(losses) == contenders.WARMUP + scopes._CHECKED_STEPS:
                raise RuntimeError("out of memory")
            losses.append(training.step(x, target))
            return losses[-1]

        contenders._train(step, batches)
        return Prepared(step)

    with_rows(monkeypatch, Contender("model", "pianola", "breaks", breaks_later))
    (table, _) = scopes.measure(workloads(device, quick=True), quick(device))
    assert [bool(row.error) for row in table.rows] == [False, True]
    assert "failed: breaks, whole model: RuntimeError: out of memory" in report.to_text(table)


def test_a_row_that_computes_something_else_is_not_timed(monkeypatch, device):
    def skips_the_optimizer(training, batches):
        contenders._train(training.step, batches)
        training.optimizer.step = lambda: None
        return Prepared(training.step)

    with_rows(monkeypatch, Contender("model", "torch", "wrong", skips_the_optimizer))
    (table, _) = scopes.measure(workloads(device, quick=True), quick(device))
    assert "differs from eager's after step 4: times of wrong results mean nothing" in table.rows[1].error
    assert table.rows[1].wall == []


def test_a_row_without_a_graph_is_not_timed(monkeypatch, device):
    def not_replayed(training, batches):
        return dataclasses.replace(eagerly(training, batches), is_replayed=lambda: False)

    with_rows(monkeypatch, Contender("iteration", "pianola", "eager after all", not_replayed))
    (table, _) = scopes.measure(workloads(device, quick=True), quick(device))
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


def run_as_module(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["pianola", *arguments])
    runpy.run_module("pianola", run_name="__main__")


def test_other_benchmarks_are_the_programs(monkeypatch):
    started = []
    monkeypatch.setattr(_pianola_program, "start", lambda: started.append(sys.argv[1:]))
    run_as_module(monkeypatch, "bench", "cuda/scopes")
    run_as_module(monkeypatch, "bench")
    assert started == [["bench", "cuda/scopes"], ["bench"]]


def test_the_table_is_pythons(monkeypatch):
    monkeypatch.setattr(_pianola_program, "start", lambda: pytest.fail("the program was started"))
    with pytest.raises(SystemExit) as ended:
        run_as_module(monkeypatch, "bench", "scopes", "--device", "cpu", "--iterations", "0")
    assert ended.value.code == 2
