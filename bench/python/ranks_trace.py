"""How much of the communication of DistributedDataParallel hides behind computing, eagerly and in a graph: on two GPUs.

    ranks_trace.py FOLDER [NAME ...]

Records steps of the training of python_ranks.py on rank 0 with torch's profiler. Leaves in FOLDER, for each workload and way, a trace
and a small one of the fourth step's kernels, to be looked at in Perfetto; and shares.json: of the time in which NCCL's kernels run, the share in which other kernels run too; of all
buckets but each step's last one, behind which nothing is left to hide.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.profiler import ProfilerActivity, profile, record_function

import machine
from python_ranks import EAGER, GRAPHED, RANKS, WARMUP, WORKLOADS, Training, begin_rank

STEPS = 5


def is_kernel(event):
    return event.get("cat") == "kernel"


def is_nccl(event):
    return "nccl" in event["name"].lower()


def union(spans):
    """Sorted, without overlaps."""
    merged = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    return merged


def covered(span, merged):
    return sum(max(0.0, min(span[1], end) - max(span[0], begin)) for begin, end in merged)


def hidden_share(events, steps):
    """@return  Share that is hidden, buckets of a step, and their time in us; the last bucket of each step is left out."""
    kernels = [event for event in events if is_kernel(event)]
    computing = union((event["ts"], event["ts"] + event["dur"]) for event in kernels if not is_nccl(event))
    reductions = sorted((event["ts"], event["ts"] + event["dur"]) for event in kernels if is_nccl(event))
    buckets = len(reductions) // steps
    others = [span for number, span in enumerate(reductions) if number % buckets != buckets - 1]
    time = sum(end - begin for begin, end in others)
    hidden = sum(covered(span, computing) for span in others)
    return (hidden / time if time else None), buckets, time / steps


def one_step(events, steps, number):
    """What the device does in that step, from the end of the communication before: NCCL in one row, all else in as many as overlap."""
    kernels = sorted((event for event in events if is_kernel(event)), key=lambda event: event["ts"])
    reductions = [event for event in kernels if is_nccl(event)]
    buckets = len(reductions) // steps
    begin, end = (reductions[buckets * (number + i) - 1] for i in (0, 1))
    begin, end = begin["ts"] + begin["dur"], end["ts"] + end["dur"]
    rows = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "rank 0, one step"}}]
    free = []  # when each row of computing is free again
    for event in kernels:
        if not begin <= event["ts"] < end:
            continue
        row = next((i for i, time in enumerate(free) if time <= event["ts"]), len(free))
        if not is_nccl(event):
            free[row : row + 1] = [event["ts"] + event["dur"]]
        thread = 100 if is_nccl(event) else row + 1
        rows.append({"ph": "X", "name": event["name"], "pid": 0, "tid": thread, "ts": event["ts"] - begin, "dur": event["dur"]})
    names = {100: "NCCL"} | {i + 1: "computing" for i in range(len(free))}
    return rows + [{"ph": "M", "name": "thread_name", "pid": 0, "tid": tid, "args": {"name": name}} for tid, name in names.items()]


def record(training, file):
    dist.barrier()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        for number in range(STEPS):
            with record_function(f"step {number}"):
                training.step()
        torch.cuda.synchronize()
    recorded.export_chrome_trace(str(file))
    return json.loads(file.read_text())["traceEvents"]


def run_rank(rank, folder, store, names):
    device, rows = begin_rank(rank, store, "cuda"), []
    for name in names:
        for way in (EAGER, GRAPHED):
            training = Training(WORKLOADS[name][0], device, way)
            for _ in range(WARMUP + 6):
                training.step()
            torch.cuda.synchronize()
            file = Path(folder, f"{name.split()[0].rstrip(',')}_{'eager' if way == EAGER else 'graphed'}_rank{rank}.json")
            events = record(training, file)
            share, buckets, time = hidden_share(events, STEPS)
            if rank == 0:
                file.with_name(f"{file.stem}_step.json").write_text(json.dumps(one_step(events, STEPS, 3)))
            rows.append({"workload": name, "way": way, "buckets": buckets, "other_buckets_us": time, "hidden": share})
            if rank != 0:
                file.unlink()
    if rank == 0:
        Path(folder, "shares.json").write_text(json.dumps({"machine": machine.describe_machine(), "steps": STEPS, "rows": rows}, indent=1) + "\n")
    dist.barrier()
    dist.destroy_process_group()


def main(folder, *names):
    Path(folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as store:
        mp.spawn(run_rank, (folder, store, list(names or WORKLOADS)), nprocs=RANKS)
    for row in json.loads(Path(folder, "shares.json").read_text())["rows"]:
        share = "one bucket" if row["hidden"] is None else f"{100 * row['hidden']:.0f} % of {row['other_buckets_us']:.0f} us hidden"
        print(f"{row['workload']:20} {row['way']:30} {row['buckets']} buckets, {share}")


if __name__ == "__main__":
    main(*sys.argv[1:])
