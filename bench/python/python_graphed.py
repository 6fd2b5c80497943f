"""Training steps whose graphs make themselves: @pianola.graphed and torch.compile, in steady state and at their start.

torch.compile starts cold: its caches on disk are in an empty folder, but Inductor itself is loaded before the clock runs.
"""

import os
import tempfile
import time

CACHES = tempfile.TemporaryDirectory(prefix="pianola-bench-", ignore_cleanup_errors=True)
os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(CACHES.name, "inductor")  # before torch reads them
os.environ["TRITON_CACHE_DIR"] = os.path.join(CACHES.name, "triton")

import measuring  # noqa: E402
import torch  # noqa: E402
from measuring import alternate, case, series, synchronize  # noqa: E402
from training import (  # noqa: E402
    CALLABLES, COMPILE, EAGER, MODEL, STEP, Reference, Training, mlp, require_replayed, transformer)

ITERATIONS, BURST = 20, 10
STARTS = 3  # samples of the time to the first replay; one of torch.compile, which takes seconds

# Calls up to the first that is replayed: torch.compile compiles, records, replays; @pianola.graphed runs three eagerly.
CALLS = {CALLABLES: 1, MODEL: 5, STEP: 5, COMPILE: 3}


def start(workload, way):
    """(training, milliseconds from making its graph to the end of the first replay)."""
    training = Training(workload, way)
    synchronize()
    begin = time.perf_counter()
    training.graph()
    for _ in range(CALLS[way]):
        training.step()
    synchronize()
    return training, (time.perf_counter() - begin) * 1000


def start_ours(workload, reference, starts):
    """({way: training}, {way: samples})."""
    trainings, samples = {}, {}
    for way in (CALLABLES, MODEL, STEP):
        samples[way] = []
        for _ in range(starts):
            trainings[way], milliseconds = start(workload, way)
            samples[way].append(milliseconds)
            reference.check(trainings[way])
    return trainings, samples


def load_inductor(settings):
    """Why torch.compile cannot be a contender; None if it can."""
    if settings.device == "cpu":
        return "left out on the CPU"
    try:
        torch.compile(lambda x: x + 1, mode="reduce-overhead")(torch.ones(1, device=settings.device))
    except Exception as error:  # whatever it is: no compiler, no triton, a GPU it does not know
        return reason(error)
    return None


def reason(error):
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


def start_compile(workload, reference, trainings, samples):
    """Adds torch.compile to both; returns why there is none, or why it is without CUDA graphs, or None."""
    skips = torch._dynamo.utils.counters["inductor"]
    before = skips["cudagraph_skips"]
    try:
        training, milliseconds = start(workload, COMPILE)
        reference.check_close(training)
    except Exception as error:  # as in load_inductor()
        return f"no figures of {COMPILE}: {reason(error)}"
    trainings[COMPILE], samples[COMPILE] = training, [milliseconds]
    skipped = skips["cudagraph_skips"] - before
    return f"{COMPILE} skipped CUDA graphs {skipped} times" if skipped else None


def first_replay_case(title, samples, notes):
    baseline = COMPILE if COMPILE in samples else MODEL
    made = case(title, "first call to the end of the first that is replayed, torch.compile's caches empty", 1, baseline,
                samples, unit="ms", notes=notes)
    if COMPILE in samples:
        for way in (MODEL, STEP):
            measuring.require_speedup(made, way, COMPILE, samples, 20)
    return made


def steady_cases(settings, title, trainings, notes):
    iterations = settings.some(ITERATIONS)
    steps = {way: training.step for way, training in trainings.items()}
    samples = alternate(steps, iterations, BURST, settings.rounds)
    for training in trainings.values():
        require_replayed(training)
    baseline = COMPILE if COMPILE in trainings else EAGER
    wall = series(samples, "wall")
    time_per_step = case(title, "time per step", iterations, baseline, wall, notes=notes)
    if COMPILE in trainings:
        for way in (MODEL, STEP):
            measuring.require_speedup(time_per_step, way, COMPILE, wall, 1)
    return [time_per_step, case(title, "host time per step", iterations, baseline, series(samples, "host"))]


def run(settings):
    no_compile = load_inductor(settings)
    for make, layers in ((mlp, 16), (transformer, 8)):
        workload = make(settings.device, settings.some(layers))
        reference = Reference(workload)
        ours, first = start_ours(workload, reference, 1 if settings.quick else STARTS)
        trainings = {EAGER: reference.training}
        note = f"no figures of {COMPILE}: {no_compile}" if no_compile else None
        if not no_compile:
            note = start_compile(workload, reference, trainings, first)
        trainings |= ours
        notes = [note] if note else []
        yield from steady_cases(settings, workload.title, trainings, notes)
        yield first_replay_case(workload.title, first, notes)
