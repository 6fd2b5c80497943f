"""`pianola decide`, `compare` and `profile` as a user meets them. PIANOLA_PROGRAM is the path of the binary."""

import gzip
import json
import os
import sqlite3
import subprocess
from pathlib import Path

import pytest

PROGRAM = os.path.abspath(os.environ["PIANOLA_PROGRAM"])
CPU_TRACE = Path(__file__).resolve().parent.parent / "tests" / "data" / "profile" / "mlp_cpu.json.gz"


def run(*arguments, cwd=None):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=60, cwd=cwd)


def training(iterations=8, graphed=False):
    """A trace of 50 kernels of 4 us per iteration, issued one every 10 us; or, graphed, by one launch, 1 us apart."""
    events, host, device = [], 1000, 0

    def event(cat, name, ts, dur, tid, **args):
        events.append({"ph": "X", "cat": cat, "name": name, "pid": 0 if cat == "kernel" else 99, "tid": tid, "ts": ts,
                       "dur": dur, "args": {**args, **({"device": 0, "stream": 7} if cat == "kernel" else {})}})

    correlation = 0
    for _ in range(iterations):
        host += 40
        if graphed:
            correlation += 1
            event("cuda_runtime", "cudaGraphLaunch", host, 5, 99, correlation=correlation)
            device = max(device + 1, host + 5)
        for kernel in range(50):
            if not graphed:
                correlation += 1
                event("cuda_runtime", "cudaLaunchKernel", host, 5, 99, correlation=correlation)
                device = max(device, host + 5)
            extra = {"graph id": 3} if graphed else {}
            event("kernel", f"kernel_{kernel}", device, 4, 7, correlation=correlation, **extra)
            device += 5 if graphed else 4
            host += 0 if graphed else 10
        host = max(host, device - 100)
    return {"traceEvents": events}


NSIGHT_SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
  globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
  contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
  demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, graphNodeId INTEGER);
"""


def export_as_nsight_does(chrome_trace, path):
    """The events of training() as `nsys export --type sqlite` writes them."""
    names = {}
    process = 99 << 24
    with sqlite3.connect(path) as database:
        database.executescript(NSIGHT_SCHEMA)
        for event in chrome_trace["traceEvents"]:
            start, args = event["ts"] * 1000, event["args"]
            end = start + event["dur"] * 1000
            if event["cat"] == "kernel":
                name = names.setdefault(event["name"], len(names))
                node = args["graph id"] << 32 if "graph id" in args else None
                database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, 1, 7, ?, ?, ?, ?, ?)",
                                 (start, end, args["correlation"], process, name, name, node))
            else:
                name = names.setdefault(event["name"] + "_v7000", len(names))
                database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, ?, ?, 0, NULL)",
                                 (start, end, process | 99, args["correlation"], name))
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", [(number, name) for name, number in names.items()])
    database.close()
    return path


@pytest.fixture
def trace(tmp_path):
    def write(contents, name="trace.json"):
        path = tmp_path / name
        text = contents if isinstance(contents, str) else json.dumps(contents)
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return path

    return write


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_launch_bound_step_is_to_be_graphed(trace, name):
    result = run("decide", trace(training(), name))
    if name.endswith(".gz") and "zlib" in result.stderr:
        pytest.skip("built without zlib")
    assert result.returncode == 0, result.stderr
    assert "Graph it, whole iteration: " in result.stdout
    assert "pianola.FullIteration(train_step)" in result.stdout


def test_the_report_is_json_too(trace):
    report = json.loads(run("decide", trace(training()), "--json", "-").stdout)
    assert report["verdict"] == "graph"
    assert report["kernels"] == 50
    assert report["busy_us"] == 200
    assert report["scopes"][3]["expected_us"] == 50 * 4.25


def test_a_page_and_a_trace_are_written(trace, tmp_path):
    page, perfetto = tmp_path / "page.html", tmp_path / "perfetto.json"
    result = run("decide", trace(training()), "--html", page, "--trace", perfetto)
    assert result.returncode == 0, result.stderr
    assert "Graph it, whole iteration: " in page.read_text()
    again = json.loads(run("decide", perfetto, "--json", "-").stdout)
    assert again["kernels"] == 50


def test_a_graphed_program_is_told_from_an_eager_one(trace):
    result = run("decide", trace(training(graphed=True)))
    assert "Graphs do the work already: 100 % of the kernels" in result.stdout


def test_before_and_after_are_compared(trace):
    before, after = trace(training(), "before.json"), trace(training(graphed=True), "after.json")
    report = json.loads(run("compare", before, after, "--json", "-").stdout)
    assert report["launches_replaced"] == 49
    assert report["speedup"] > 2
    assert report["predicted_us"] == 50 * 4.25
    assert "times as fast" in run("compare", before, after).stdout


@pytest.mark.parametrize("graphed", [False, True])
def test_an_export_of_nsight_systems_says_what_the_trace_says(trace, tmp_path, graphed):
    contents = training(graphed=graphed)
    result = run("decide", export_as_nsight_does(contents, tmp_path / "report.sqlite"), "--json", "-")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    expected = json.loads(run("decide", trace(contents), "--json", "-").stdout)
    assert report == expected
    assert report["verdict"] == ("graphed already" if graphed else "graph")


def test_exports_are_compared_and_refused_in_python_s_words(trace, tmp_path):
    before = export_as_nsight_does(training(), tmp_path / "before.sqlite")
    result = run("compare", before, trace(training(graphed=True)), "--json", "-")
    assert json.loads(result.stdout)["launches_replaced"] == 49
    before.write_bytes(before.read_bytes()[:600])
    result = run("decide", before)
    assert result.returncode == 1
    assert result.stderr.startswith(f"pianola: '{before}' is cut off or damaged: ")
    assert "\n  fix:   export the report again (nsys export --type sqlite REPORT.nsys-rep)" in result.stderr


def test_an_export_without_an_interpreter_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PIANOLA_PYTHON", "/nonexistent/python")
    result = run("decide", export_as_nsight_does(training(), tmp_path / "report.sqlite"))
    assert result.returncode == 1
    assert "cannot start '/nonexistent/python', which exports of Nsight Systems need: No such file" in result.stderr
    assert "fix:   set PIANOLA_PYTHON to an interpreter that has sqlite3" in result.stderr


def test_a_report_of_nsight_systems_has_to_be_exported(tmp_path):
    report = tmp_path / "train.nsys-rep"
    report.write_bytes(b"a report")
    result = run("decide", report)
    assert result.returncode == 1
    assert f"nsys export --type sqlite --output '{tmp_path / 'train.sqlite'}' '{report}'" in result.stderr


def test_a_profile_of_the_cpu_decides_nothing():
    result = run("decide", CPU_TRACE)
    if "zlib" in result.stderr:
        pytest.skip("built without zlib")
    assert result.returncode == 0, result.stderr
    assert "There is no GPU work in this profile" in result.stdout


def test_a_trace_that_is_cut_off_is_read_as_far_as_it_goes(trace):
    text = json.dumps(training())
    result = run("decide", trace(text[: len(text) * 3 // 4]))
    assert result.returncode == 0, result.stderr
    assert "cut off" in result.stdout
    assert "Graph it, whole iteration: " in result.stdout


@pytest.mark.parametrize("contents, words", [
    ("", "is empty"),
    ("no trace", "is no Chrome trace: it is not JSON"),
    ("{}", 'it has no "traceEvents"'),
    ('{"traceEvents": []}', "has no events"),
])
def test_a_file_that_is_no_profile_is_refused(trace, contents, words):
    result = run("decide", trace(contents))
    assert result.returncode == 1
    assert words in result.stderr


def with_times(begin, duration):
    """A profile that can be judged, and one kernel more with these times, as text."""
    contents = json.dumps(training())
    event = f'{{"ph": "X", "cat": "kernel", "name": "odd", "pid": 0, "tid": 7, "ts": {begin}, "dur": {duration}}}'
    return contents.replace('"traceEvents": [', f'"traceEvents": [{event}, ')


@pytest.mark.parametrize("begin, duration", [
    ("5", "-5"), ("-9223372036854775.808", "1"), ("9223372036854775.807", "1"), ("5", "9223372036854775807"),
    ("18446744073709551616", "1"), ("1e300", "1"), ("1e400", "1"), ("5", "1e30"), ("1790857026000000", "1"),
])
def test_times_that_cannot_be_right_are_refused_with_file_and_event(trace, begin, duration):
    path = trace(with_times(begin, duration), "odd.json")
    result = run("decide", path, "--json", "-")
    assert (result.returncode, result.stdout) == (1, ""), result
    assert f"'{path}' has " in result.stderr
    assert "where: event " in result.stderr or "where: byte " in result.stderr


def test_a_report_or_a_folder_of_others_is_no_profile(trace, tmp_path):
    report = tmp_path / "report.json"
    assert run("decide", trace(training()), "--json", report).returncode == 0
    for other in (report, tmp_path):
        result = run("compare", trace(training()), other)
        assert (result.returncode, result.stdout) == (1, "")
        assert str(other) in result.stderr


def test_devices_and_pipes_are_no_profiles(tmp_path):
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    for path in (pipe, "/dev/zero"):
        result = run("decide", path)
        assert result.returncode == 1
        assert f"'{path}' is a pipe or a device" in result.stderr


def test_a_missing_profile_is_named(tmp_path):
    result = run("decide", tmp_path / "nowhere.json")
    assert result.returncode == 1
    assert "nowhere.json" in result.stderr


def test_a_range_that_is_not_there_is_named(trace):
    result = run("decide", trace(training()), "--range", "epoch")
    assert result.returncode == 1
    assert "epoch" in result.stderr


def test_work_that_never_repeats_cannot_be_judged(trace):
    result = run("decide", trace(training(iterations=1)))
    assert result.returncode == 0
    assert "No verdict: " in result.stdout


needs_recorder = pytest.mark.skipif(not (Path(PROGRAM).parents[1] / "libpianola_profiler.so").exists(),
                                    reason="built without CUDA")


@needs_recorder
@pytest.mark.parametrize("command, code, words", [
    (["true"], 1, "'true' ended with exit code 0 and never used CUDA"),
    (["sh", "-c", "exit 3"], 3, "'sh' ended with exit code 3 and never used CUDA"),
    (["no_such_program"], 1, "there is no program 'no_such_program'"),
])
def test_a_command_that_cannot_be_recorded_is_named_and_leaves_nothing(tmp_path, command, code, words):
    result = run("profile", "--", *command, cwd=tmp_path)
    assert result.returncode == code
    assert words in result.stderr
    assert not list(tmp_path.iterdir())


def test_profile_wants_a_command():
    result = run("profile")
    assert result.returncode == 2
    assert "COMMAND is required" in result.stderr


@pytest.mark.parametrize("option", ["--delay", "--seconds"])
def test_a_profile_takes_no_time_that_is_negative(option):
    result = run("profile", option, "-1", "--", "true")
    assert result.returncode == 2
    assert option in result.stderr
    assert "-1" in result.stderr
