"""Makes the corpus of the fuzzers anew: small inputs of each kind, cut from the profiles in tests/data.

    python tests/fuzz/make_corpus.py

Files whose name begins with `found_` are left as they are: each was a finding once.
"""

import gzip
import json
import re
import runpy
import sqlite3
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROFILES = HERE.parent / "data" / "profile"
CORPUS = HERE / "corpus"
KINDS = {"kernel": "CUPTI_ACTIVITY_KIND_KERNEL", "gpu_memset": "CUPTI_ACTIVITY_KIND_MEMSET",
         "gpu_memcpy": "CUPTI_ACTIVITY_KIND_MEMCPY"}

CONFIGS = {
    "full_iteration.json": json.dumps({
        "target": "bridge",
        "model": {"cuda_graph_impl": "full_iteration", "cuda_graph_warmup_steps": 3, "use_te_rng_tracker": True},
        "rng": {"te_rng_tracker": True}, "rerun_state_machine": {"check_for_nan_in_loss": False},
        "ddp": {"check_for_nan_in_grad": False}, "env": {"NCCL_GRAPH_REGISTER": 1}}),
    "flat.json": json.dumps({
        "cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ["attn", "moe_router"],
        "model.recompute_granularity": "selective", "recompute_modules": ["core_attn"], "cuda_graph_warmup_steps": 0}),
    "old_names.json": json.dumps({"model": {"enable_cuda_graph": True, "cuda_graph_scope": ["full_iteration"]}}),
    "full_iteration.yaml": "y" "target: bridge\nmodel:\n  cuda_graph_impl: full_iteration\n  cuda_graph_modules: &m [attn, mlp]\n"
                           "rng: {te_rng_tracker: true}\nother: *m\nlist:\n  - 1\n  - -2.5e3\n",
}
SCHEDULES = {"interleaved": "1,1,2,-2,2,-2,1,-1,1,-1,2,-2,2,-2,-1,-1", "brackets": "[1, 2, 1, 2, -2, -1, -2, -1]",
             "delayed": "1,2,-2,-1.5", "gap": "1,3,-3,-1", "words": "1,x,+-2"}


def is_read(event):
    kinds = {"kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "user_annotation", "cpu_op"}
    module = event.get("cat") == "python_function" and event["name"].startswith("nn.Module")
    return module or event.get("cat") in kinds


def events_of(name):
    """Some of the trace's events that follow each other, from its middle."""
    document = json.loads(gzip.decompress((PROFILES / f"{name}.json.gz").read_bytes()))
    events = sorted(filter(is_read, document["traceEvents"]), key=lambda event: event["ts"])
    return document, events[len(events) // 2:len(events) // 2 + 40]


def short(event):
    """The event with the fields that are read."""
    kept = {"device", "stream", "correlation", "bytes", "graph id", "graph node id"}
    args = {key: value for key, value in event.get("args", {}).items() if key in kept}
    name = re.sub(r"<.*", "<>", event["name"])[:40]
    return {**{key: event[key] for key in ("ph", "cat", "pid", "tid", "ts", "dur")}, "name": name, "args": args}


def write_traces():
    folder = CORPUS / "chrome_trace"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("mlp_gpu_torch", "mlp_gpu_torch_graph", "mlp_cpu"):
        document, events = events_of(name)
        head = {"deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],
                "baseTimeNanoseconds": document.get("baseTimeNanoseconds", 0)}
        (folder / f"{name}.json").write_text(json.dumps({**head, "traceEvents": [short(event) for event in events]}, indent=0))
    steps = [{"ph": "X", "cat": cat, "name": f"{cat}_{i % 4}", "pid": 0 if cat == "kernel" else 9, "tid": 7,
              "ts": 10 * i + (3 if cat == "kernel" else 0), "dur": 3.25, "args": {"correlation": i, "stream": 7}}
             for i in range(20) for cat in ("kernel", "cuda_runtime")]
    steps += [{"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{i}", "pid": 9, "tid": 7, "ts": 40 * i, "dur": 40}
              for i in range(5)]
    steps += [{"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 9, "tid": 7, "ts": 40 * i + 1, "args": {
        "Bytes": size, "Addr": 4096, "Device Type": 1, "Device Id": 0, "Total Allocated": 4096, "Total Reserved": 8192}}
        for i in range(5) for size in (512, -512)]
    text = json.dumps(steps, indent=0)
    (folder / "steps.json").write_text(text)
    (folder / "steps.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def write_recordings():
    folder = CORPUS / "recording"
    folder.mkdir(parents=True, exist_ok=True)
    cut = runpy.run_path(str(PROFILES / "cut_recording.py"))["main"]
    for name, seconds in (("mlp_gpu", 0.006), ("mlp_gpu_graph", 0.02)):
        cut(next((PROFILES / name).glob("*.pianola")), folder / name, seconds)


def insert(database, table, **values):
    columns = ", ".join(f"[{name}]" for name in values)
    database.execute(f"INSERT INTO {table} ({columns}) VALUES ({', '.join('?' * len(values))})", list(values.values()))


def write_exports():
    folder = CORPUS / "nsight_export"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "steps.sqlite"
    path.unlink(missing_ok=True)
    database = sqlite3.connect(path)
    work = "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER"
    database.executescript(f"""
        PRAGMA page_size = 512;
        CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
        CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
        CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT);
        CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER,
          nameId INTEGER);
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({work}, demangledName INTEGER, graphNodeId INTEGER);
        CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY ({work}, bytes INTEGER, copyKind INTEGER, srcKind INTEGER, dstKind INTEGER);
        CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, globalTid INTEGER, text TEXT, textId INTEGER, eventType INTEGER);
        INSERT INTO StringIds VALUES (1, 'cudaLaunchKernel_v7000'), (2, 'gemm'), (3, 'relu'), (4, 'step');
        INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_PRODUCT_VERSION', '2026.1');
        INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H200');""")
    pid = (1 << 56) | (4000 << 24)
    for i in range(24):
        begin = 1_000_000 + 10_000 * i
        insert(database, "CUPTI_ACTIVITY_KIND_RUNTIME", start=begin, end=begin + 3000, globalTid=pid | 5, correlationId=i,
               nameId=1)
        place = dict(deviceId=0, streamId=7, correlationId=i, globalPid=pid)
        if i % 4 == 3:
            insert(database, "CUPTI_ACTIVITY_KIND_MEMCPY", start=begin + 4000, end=begin + 6000, **place, bytes=4096,
                   copyKind=1, srcKind=1, dstKind=2)
        else:
            insert(database, "CUPTI_ACTIVITY_KIND_KERNEL", start=begin + 4000, end=begin + 6000, **place,
                   demangledName=2 + i % 2)
        if i % 4 == 0:
            insert(database, "NVTX_EVENTS", start=begin, end=None if i == 20 else begin + 35_000, globalTid=pid | 5,
                   textId=4, eventType=59)
    database.commit()
    database.execute("VACUUM")
    database.close()


def write_texts():
    for folder, texts in (("config", CONFIGS), ("schedule", SCHEDULES)):
        (CORPUS / folder).mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (CORPUS / folder / name).write_text(text)


if __name__ == "__main__":
    write_traces()
    write_recordings()
    write_exports()
    write_texts()
