"""Exports of Nsight Systems: all that happened is read, whatever the version, and a damaged file is refused by name."""

import io
import json
import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pianola
import pytest
from pianola import _nsight as nsight

PID = 4000
# As documented in the User Guide, without the columns that say how a kernel was configured.
SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE META_DATA_EXPORT (name TEXT NOT NULL, value TEXT);
INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_PRODUCT_VERSION', '2026.1.1.204'), ('EXPORT_SCHEMA_VERSION', '3.24.14');
CREATE TABLE TARGET_INFO_GPU (vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, busLocation TEXT, smCount INTEGER);
INSERT INTO TARGET_INFO_GPU (vmId, id, name) VALUES (1, 0, 'another GPU'), (1, 3, 'NVIDIA H200');
CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER NOT NULL, pid INTEGER NOT NULL, uuid TEXT NOT NULL);
INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (3, 0, 4000, ''), (0, 1, 4000, '');
CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (
  start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER,
  nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (
  start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
  greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
  demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER, graphNodeId INTEGER, graphId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (
  start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
  greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, bytes INTEGER NOT NULL,
  copyKind INTEGER NOT NULL, srcKind INTEGER, dstKind INTEGER, graphNodeId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (
  start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
  greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, value INTEGER NOT NULL,
  bytes INTEGER NOT NULL, graphNodeId INTEGER, memKind INTEGER);
CREATE TABLE NVTX_EVENTS (
  start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, category INTEGER, color INTEGER,
  text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER);
INSERT INTO NVTX_EVENTS (start, eventType, text, domainId) VALUES (1, 75, 'CCCL', 1);
INSERT INTO NVTX_EVENTS (start, eventType, text, globalTid) VALUES (2, 34, 'a mark', 1);
"""
GRAPH_TRACE = """
DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE graphId = 9;
CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INT, end INT, deviceId INT, contextId INT, streamId INT,
  correlationId INT, globalPid INT, graphId INT NOT NULL, graphExecId INT NOT NULL);
INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE SELECT 70000, 77000, 0, 1, 7, correlationId, globalTid, 9, 11
  FROM CUPTI_ACTIVITY_KIND_RUNTIME JOIN StringIds ON nameId = id WHERE value LIKE 'cudaGraphLaunch%';
"""


class Export:
    """Rows as Nsight Systems 2026 writes them; times in microseconds."""

    def __init__(self, path):
        self.path = path
        self.texts = {}
        with sqlite3.connect(path) as self.database:
            self.database.executescript(SCHEMA)

    def id(self, text):
        return self.texts.setdefault(text, len(self.texts) + 100)

    def row(self, table, begin, duration, **values):
        values |= {"start": begin * 1000, "end": (begin + duration) * 1000}
        names = ", ".join(f"[{name}]" for name in values)
        self.database.execute(f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(values))})", list(values.values()))

    def call(self, name, begin, duration, correlation, thread=1, process=0):
        self.row("CUPTI_ACTIVITY_KIND_RUNTIME", begin, duration, eventClass=0, globalTid=of_process(process) | thread,
                 correlationId=correlation, nameId=self.id(f"{name}_v7000"), returnValue=0)  # fmt: skip

    def work(self, kind, begin, duration, correlation, stream=7, process=0, **values):
        self.row(f"CUPTI_ACTIVITY_KIND_{kind}", begin, duration, deviceId=0, contextId=1, streamId=stream,
                 correlationId=correlation, globalPid=of_process(process), **values)  # fmt: skip

    def kernel(self, name, begin, duration, correlation, graph=None, **values):
        node = None if graph is None else graph << 32 | 5
        self.work("KERNEL", begin, duration, correlation, demangledName=self.id(name), shortName=self.id("short name"),
                  graphNodeId=node, graphId=graph, **values)  # fmt: skip

    def range(self, name, begin, duration, kind=59, thread=1):
        told = {"textId": self.id(name)} if kind == 60 else {"text": name}
        self.row("NVTX_EVENTS", begin, duration, eventType=kind, globalTid=of_process(0) | thread, **told)

    def close(self):
        with self.database:
            self.database.executemany("INSERT INTO StringIds VALUES (?, ?)", [(number, text) for text, number in self.texts.items()])
        self.database.close()

    def change(self, statements):
        database = sqlite3.connect(self.path)
        with database:
            database.executescript(statements)
        database.close()
        return self

    def read(self):
        """(the whole document, its events)."""
        text = io.StringIO()
        nsight.write_trace(self.path, text)
        document = json.loads(text.getvalue())
        return document, document["traceEvents"]

    def named(self, category):
        return [event["name"] for event in self.read()[1] if event["cat"] == category]

    def notes(self):
        return self.read()[0]["pianolaNotes"]


def of_process(process):
    """Of a computer 1 in the first byte, as exports have it."""
    return 1 << 56 | (PID + process) << 24


@pytest.fixture
def step(tmp_path):
    """A launch of each kind, from two threads, with a wait, and ranges of all kinds."""
    export = Export(tmp_path / "report.sqlite")
    for name, begin, duration, correlation in (
        ("cudaLaunchKernel", 4, 1, 1), ("cudaMemcpyAsync", 8, 1, 2), ("cudaMemcpy", 12, 30, 3), ("cudaMemsetAsync", 44, 1, 4),
        ("cudaMemcpyAsync", 48, 1, 5), ("cudaGraphLaunch", 60, 1, 6), ("cudaDeviceSynchronize", 66, 12, 7)):  # fmt: skip
        export.call(name, begin, duration, correlation)
    export.kernel("void gemm<float, 4>(float const*)", 10, 5, 1)
    export.work("MEMCPY", 20, 4, 2, bytes=64, copyKind=1, srcKind=1, dstKind=2)
    export.work("MEMCPY", 30, 4, 3, bytes=64, copyKind=2, srcKind=2, dstKind=1)
    export.work("MEMSET", 50, 2, 4, value=0, bytes=64, memKind=2)
    export.work("MEMCPY", 60, 3, 5, stream=20, bytes=64, copyKind=8, srcKind=2, dstKind=2)
    export.kernel("node 1", 70, 3, 6, graph=9)
    export.kernel("node 2", 74, 3, 6, graph=9)
    export.range("train", 2, 80)
    export.range("nn.Module: Linear_0", 3, 20, kind=60)
    export.range("aten::addmm, seq = 3, op_id = 17, sizes = [[8, 4]]", 3.5, 5)
    export.range("autograd::engine::evaluate_function: AddmmBackward0", 40, 10, kind=60, thread=2)
    export.close()
    return export


@pytest.fixture
def training(tmp_path):
    """Enough of it for tables of several pages: 30 iterations of 20 kernels."""
    export = Export(tmp_path / "training.sqlite")
    for i in range(30):
        export.range("step", i * 1000, 900)
        for k in range(20):
            export.call("cudaLaunchKernel", i * 1000 + 20 * k, 5, 20 * i + k + 1)
            export.kernel(f"kernel_{k}", i * 1000 + 20 * k + 10, 4, 20 * i + k + 1)
    export.close()
    return export


def test_it_holds_all_that_happened(step):
    document, events = step.read()
    assert document["pianolaSource"] == f"Nsight Systems export '{step.path}'"
    assert document["deviceProperties"] == [{"name": "NVIDIA H200"}] and document["pianolaNotes"] == []
    assert len(events) == 7 + 7 + 4
    assert events[0] == {"ph": "X", "cat": "nsys_call", "name": "cudaLaunchKernel_v7000", "ts": 4, "dur": 1, "pid": 0, "tid": 1,
                         "args": {"correlation": 1}}  # fmt: skip
    assert step.named("kernel") == ["void gemm<float, 4>(float const*)", "node 1", "node 2"]
    assert step.named("gpu_memcpy") == ["Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Pinned)",
                                        "Memcpy DtoD (Device -> Device)"]  # fmt: skip
    copy, node = events[12], events[9]
    assert copy["args"] == {"device": 0, "stream": 20, "correlation": 5, "graph id": 0, "graph node id": 0, "bytes": 64, "process": 0}
    assert node["args"]["graph id"] == 9 and node["args"]["graph node id"] == 9 << 32 | 5
    assert step.named("gpu_memset") == ["Memset (Device)"]
    ranges = [(one["name"], one["ts"], one["dur"], one["tid"]) for one in events if one["cat"] == "nsys_range"]
    assert ranges[1:3] == [("nn.Module: Linear_0", 3, 20, 1), ("aten::addmm, seq = 3, op_id = 17, sizes = [[8, 4]]", 3.5, 5, 1)]


def test_a_profile_of_it_names_the_export(training):
    profile = pianola.decide(training.path)
    assert profile.kernels == 20 and profile.launches == 20 and profile.iterations > 20
    assert f"Nsight Systems export '{training.path}'" in profile.to_text() and "NVIDIA H200" in profile.to_text()
    assert pianola.decide(training.path, range="step").iterations >= 29


def test_times_keep_their_nanoseconds(step):
    step.change("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = -7, end = 1001 WHERE start = 10000")
    text = io.StringIO()
    nsight.write_trace(step.path, text)
    assert '"ts":-0.007,"dur":1.008' in text.getvalue()


def test_processes_stay_apart(tmp_path):
    export = Export(tmp_path / "two.sqlite")
    for process in (0, 1):
        export.call("cudaLaunchKernel", 4, 1, 1, process=process)
        export.kernel("gemm", 10, 5, 1, process=process)
    export.close()
    _, events = export.read()
    assert [event["pid"] for event in events[:2]] == [0, 1]
    assert [event["args"]["process"] for event in events[2:]] == [0, 1]
    assert export.notes() == ["processes by number: 0 is 4000, 1 is 4001"]
    export.change("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN globalPid")
    assert all("process" not in event["args"] for event in export.read()[1][2:])


@pytest.mark.parametrize("name", ["profile.db", "50% of #1, who?mode=memory ü.sqlite"])
def test_its_name_is_any(training, name):
    path = training.path.with_name(name)
    training.path.rename(path)
    assert pianola.decide(path).kernels == 20


def test_it_is_left_as_it_is(step):
    step.change("PRAGMA journal_mode = WAL")
    before = step.path.read_bytes()
    step.path.chmod(stat.S_IRUSR)
    step.read()
    assert step.path.read_bytes() == before and os.listdir(step.path.parent) == ["report.sqlite"]


def drop(table, *columns):
    return "".join(f"ALTER TABLE CUPTI_ACTIVITY_KIND_{table} DROP COLUMN {column};" for column in columns)


@pytest.mark.parametrize("change, category, expected", [
    (drop("KERNEL", "demangledName"), "kernel", ["short name"] * 3),
    ("DELETE FROM StringIds WHERE value LIKE 'void gemm%'", "kernel", ["(a kernel without a name)", "node 1", "node 2"]),
    ("DELETE FROM StringIds WHERE value LIKE 'nn.%'; UPDATE NVTX_EVENTS SET text = NULL", "nsys_range",
     ["(a range without a name)"] * 3 + ["autograd::engine::evaluate_function: AddmmBackward0"]),
    (drop("MEMCPY", "srcKind", "dstKind"), "gpu_memcpy", [f"Memcpy {way} (Unknown -> Unknown)" for way in ("HtoD", "DtoH", "DtoD")]),
    (drop("MEMSET", "memKind"), "gpu_memset", ["Memset (Unknown)"]),
    ("DROP TABLE CUPTI_ACTIVITY_KIND_MEMCPY", "gpu_memcpy", []),
    (GRAPH_TRACE, "kernel", ["void gemm<float, 4>(float const*)", "graph 9"]),
    ("UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET copyKind = 77 WHERE copyKind = 8", "gpu_memcpy",
     ["Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Pinned)", "Memcpy <unknown> (Device -> Device)"]),
])  # fmt: skip
def test_what_a_version_leaves_out_is_done_without(step, change, category, expected):
    assert step.change(change).named(category) == expected


def test_the_device_s_name_is_where_the_version_has_it(step):
    def name():
        return step.read()[0]["deviceProperties"][0]["name"]

    step.change("DROP TABLE TARGET_INFO_CUDA_DEVICE")
    assert name() == "another GPU", "by the number of the GPU, where none of CUDA's is known"
    step.change("DROP TABLE TARGET_INFO_GPU; CREATE TABLE TARGET_INFO_CUDA_GPU (deviceId INTEGER, name TEXT);"
                "INSERT INTO TARGET_INFO_CUDA_GPU VALUES (0, 'an older GPU')")  # fmt: skip
    assert name() == "an older GPU"
    step.change("DROP TABLE TARGET_INFO_CUDA_GPU")
    assert name() == ""


@pytest.mark.parametrize("change, note", [
    ("DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME", "no calls of CUDA were recorded: what the host did while"),
    (GRAPH_TRACE, "1 launch of graphs was recorded as one piece of work each: record with nsys profile --cuda-graph-trace=node"),
    ("UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET copyKind = 11 WHERE copyKind = 8", "1 migration of unified memory was left out"),
    ("UPDATE CUPTI_ACTIVITY_KIND_MEMSET SET start = 0, end = 0;"
     "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'soon' WHERE start = 10000",
     "2 calls or pieces of work without times were left out"),
])  # fmt: skip
def test_what_is_missing_is_a_note(step, change, note):
    (told,) = step.change(change).notes()
    assert told.startswith(note)


def test_an_open_range_lasts_to_the_end(step):
    step.change("UPDATE NVTX_EVENTS SET end = NULL WHERE text = 'train'")
    (train,) = [event for event in step.read()[1] if event["name"] == "train"]
    assert (train["ts"], train["dur"]) == (2, 76)


@pytest.mark.parametrize("change, what, where", [
    ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start - 1 WHERE start = 10000", "it ends before it begins",
     "where: row 1 of the table CUPTI_ACTIVITY_KIND_KERNEL, from 10000 ns to 9999 ns"),
    ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = -9223372036854775807 - 1", "95 years",
     "row 1 of the table CUPTI_ACTIVITY_KIND_KERNEL, from -9223372036854775808 ns to "),
    ("UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET end = 9223372036854775807", "95 years", "row 1 of the table CUPTI_ACTIVITY_KIND_MEMCPY"),
    ("UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET end = 9223372036854775807", "95 years", "row 1 of the table CUPTI_ACTIVITY_KIND_RUNTIME"),
    ("UPDATE NVTX_EVENTS SET end = 5e16 WHERE text = 'train'", "more than a year", "row 3 of the table NVTX_EVENTS"),
    ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = 4294967296", "device 4294967296", "row 1 of the table CUPTI_ACTIVITY_KIND_KERNEL"),
    ("UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET bytes = -1", "number that cannot be right: bytes -1",
     "row 1 of the table CUPTI_ACTIVITY_KIND_MEMCPY"),
])  # fmt: skip
def test_a_wrong_row_is_refused_with_file_and_row(step, change, what, where):
    with pytest.raises(pianola.UsageError) as raised:
        pianola.decide(step.change(change).path)
    for text in (f"the Nsight Systems export '{step.path}' has a ", what, where, "\n  fix:   the file was damaged"):
        assert text in str(raised.value)


def refusal(export):
    with pytest.raises(pianola.UsageError) as raised:
        pianola.decide(export.path)
    return str(raised.value)


@pytest.mark.parametrize("has_limit", [False, *([True] if sys.version_info >= (3, 11) else [])])
def test_a_text_that_is_too_long_is_refused(step, monkeypatch, has_limit):
    monkeypatch.setattr(nsight, "_HAS_LIMIT", has_limit)
    message = refusal(step.change("UPDATE StringIds SET value = CAST(zeroblob(30000000) AS TEXT)"))
    assert "report.sqlite' cannot be read: SQLite says '" in message and "too big" in message


def test_what_a_file_would_have_sqlite_compute_is_left_alone(step):
    step.change("""DROP TABLE NVTX_EVENTS; CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, globalTid INTEGER, eventType INTEGER,
                text TEXT GENERATED ALWAYS AS (CAST(zeroblob(900000000) AS TEXT)));
                INSERT INTO NVTX_EVENTS VALUES (1000, 2000, 1, 59)""")  # fmt: skip
    assert step.named("nsys_range") == ["(a range without a name)"]


def test_rows_that_never_end_are_refused(training):
    """A damaged file may say anything: an inner page of a table, that it is its own child."""
    data = bytearray(training.path.read_bytes())
    page = next(at for at in range(4096, len(data), 4096) if data[at] == 5)
    data[page + 8 : page + 12] = (page // 4096 + 1).to_bytes(4, "big")
    training.path.write_bytes(data)
    assert "training.sqlite' is cut off or damaged: " in refusal(training)


def test_files_of_another_kind_are_refused(tmp_path):
    other = Export.__new__(Export)
    other.path = tmp_path / "mail.sqlite"
    other.change("CREATE TABLE letters (text TEXT)")
    assert "is an SQLite file, but no export of Nsight Systems: it has no table StringIds" in refusal(other)
    for text in (b"", b"SQLite", b'{"traceEvents": []}'):
        other.path.write_bytes(text)
        assert "mail.sqlite' is no SQLite file" in refusal(other)
    other.path.unlink()
    assert "there is no trace file" in refusal(other)


def test_a_cut_file_is_refused_wherever_it_is_cut(training):
    whole = training.path.read_bytes()
    assert len(whole) > 50_000
    for size in (20, 600, 4096, len(whole) // 2, len(whole) - 4096, len(whole) - 1):
        training.path.write_bytes(whole[:size])
        message = refusal(training)
        assert "training.sqlite' is cut off or damaged: " in message and "wait until that has ended" in message


def test_a_damaged_page_is_refused(training):
    data = bytearray(training.path.read_bytes())
    data[4096::4096] = b"\x77" * len(data[4096::4096])
    training.path.write_bytes(data)
    assert "is cut off or damaged: SQLite says '" in refusal(training)


def test_a_recording_without_work_of_a_gpu_is_refused(step):
    step.change("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL; DROP TABLE CUPTI_ACTIVITY_KIND_MEMCPY; DELETE FROM CUPTI_ACTIVITY_KIND_MEMSET")
    message = refusal(step)
    assert "has no work of a GPU: 7 calls of CUDA and 4 NVTX ranges" in message
    assert "where: Nsight Systems 2026.1.1.204, schema 3.24.14" in message and "--trace=cuda,nvtx" in message


def test_a_table_that_lacks_what_is_needed_is_refused(step):
    message = refusal(step.change(drop("KERNEL", "streamId")))
    assert "has no column 'streamId' in its table CUPTI_ACTIVITY_KIND_KERNEL" in message and "with a newer nsys" in message
    assert "an unknown version of Nsight Systems" in refusal(step.change("DROP TABLE META_DATA_EXPORT"))


def test_the_script_starts_a_program_with_traces(step, tmp_path):
    """By itself, as the program starts it: without the package."""
    script = Path(nsight.__file__)
    show = "import sys; print([open(one).read()[:18] if one.endswith('.json') else one for one in sys.argv[2:]])"
    ran = subprocess.run([sys.executable, "-I", script, sys.executable, "-c", show, "decide", step.path, "--html", "x.sqlite"],
                         capture_output=True, text=True)  # fmt: skip
    assert ran.stdout == """['{"pianolaSource": ', '--html', 'x.sqlite']\n""", ran.stderr
    step.path.write_bytes(step.path.read_bytes()[:600])
    ran = subprocess.run([sys.executable, "-I", script, "none", "decide", step.path], capture_output=True, text=True)
    assert ran.returncode == 1 and ran.stderr.startswith(f"pianola: '{step.path}' is cut off or damaged")


def test_a_python_without_sqlite3_says_so(step):
    program = ("import runpy, sys; sys.modules['sqlite3'] = None; sys.argv = sys.argv[1:];"
               "runpy.run_path(sys.argv[0], run_name='__main__')")  # fmt: skip
    ran = subprocess.run([sys.executable, "-c", program, nsight.__file__, "none", "decide", step.path], capture_output=True, text=True)
    assert ran.returncode == 1 and f"'{step.path}' is an SQLite file, and this Python has no sqlite3" in ran.stderr
