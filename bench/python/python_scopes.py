"""Training steps without a graph, and with torch's and Pianola's graphs of the iteration, the model and each submodule."""

import measuring
import torch
from measuring import case
from scopes import rows
from scopes.workloads import workloads

TIMES = {  # fields of a row -> what they measure
    "self_cpu": "self CPU time per iteration",
    "self_cpu_without_waits": "self CPU time per iteration, without waiting for the device",
    "host": "host time per iteration",
    "wall": "wall time per iteration",
}
GRAPHS = ("iteration", "model", "submodules")
AS_FAST = 1  # of torch's time; graphs of the same kernels, which the device bounds, are alike but for noise


def run(settings):
    device = torch.device(settings.device)
    traces = settings.out / "scopes" if settings.out else None
    if traces:
        traces.mkdir(parents=True, exist_ok=True)
    if device.type == "cpu":
        torch.set_num_threads(1)  # the models are too small for more, and threads that wait for a core tell nothing
    wanted = rows.Settings(device, rounds=settings.rounds, traces=traces)
    failed = []
    for table in rows.measure(workloads(device, settings.quick), wanted.quick() if settings.quick else wanted):
        yield from cases_of(table)
        failed += [f"{table.workload.title}, {row.contender.words}: {row.error}" for row in table.rows
                   if row.error and row.contender.owner != "torch"]  # torch's are notes of the cases
    if failed:
        raise RuntimeError("\n".join(failed))


def cases_of(table):
    """One for each time; they make one table in bench/results/*/README.md."""
    eager = table.row("eager", "none")
    if eager is None:
        return
    complete = {row.contender.words: row for row in table.complete}
    made = {}
    for field, measured in TIMES.items():
        samples = {name: getattr(row, field) for name, row in complete.items()}
        one = case(table.workload.title, measured, table.iterations, eager.contender.words, samples)
        made[field] = one | {"table": table.workload.title}
    made["wall"] |= {"notes": notes_of(table)}
    require(table, made)
    yield from made.values()


def notes_of(table):
    notes = ["self CPU time is what torch.profiler sums up: operations and calls of CUDA's runtime, not what Python or C++ "
             "does between them, nor launches through the driver, as Pianola's; compare APIs by host time"]
    notes += [f"{row.contender.words}: failed: {row.error.splitlines()[0]}" for row in table.rows if row.error]
    if any(row.trace for row in table.complete):
        notes.append(f"traces for https://ui.perfetto.dev, one for each row: `scopes/{table.workload.name}_*.json.gz`")
    return notes


def require(table, made):
    if not any(row.contender.owner == "torch" for row in table.rows):
        return  # a self-test
    eager = table.row("eager", "none")
    # By the host's time as well, in which nothing is left out: the profiler counts operations and calls of CUDA's runtime.
    for field in ("self_cpu", "host"):
        require_speedup(made[field], field, table.row("iteration", "pianola"), eager, 2.5)
    require_speedup(made["host"], "host", table.row("submodules", "pianola"), table.row("submodules", "torch"), 2)
    for scope in GRAPHS:
        ours, torchs = table.row(scope, "pianola"), table.row(scope, "torch")
        if ours and torchs:
            measuring.require_ratio(
                made["wall"], ours.contender.words, torchs.contender.words, ours.wall, torchs.wall, AS_FAST)


def require_speedup(target, field, ours, other, limit):
    if ours and other:
        samples = {row.contender.words: getattr(row, field) for row in (ours, other)}
        measuring.require_speedup(target, ours.contender.words, other.contender.words, samples, limit)
