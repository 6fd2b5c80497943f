"""What a profile of a training step foretells, against what its graph then takes; and what recording costs the program.

Each workload is profiled twice, in this process by pianola.profile and, as a program of its own, by `pianola profile`. The
whole step is then captured, and takes turns with the eager one; its memory is held against what was foretold.
"""

import contextlib
import importlib.util
import statistics
import sys
import tempfile
from pathlib import Path

import measuring
import pianola
import torch
from measuring import alternate, case, series
from profiled_training import PACKAGES, WORKLOADS
from training import EAGER, STEP, Reference, Training, require_replayed
from worker_process import WorkerProcess

PROGRAM = Path(__file__).with_name("profiled_training.py")
IN_PROCESS = "predicted by pianola.profile"
RECORDED = "predicted by pianola profile -- python"
PLAIN, UNDER_RECORDER = "as it is", "under pianola profile"
TAKEN, FORETOLD = "pianola.Graph of the whole step", "foretold by pianola.profile"
WHOLE = "whole iteration"
MIB = 1 << 20
SAMPLES = 8  # of a process
ANSWER_TIMEOUT_S = 120  # of its first, for which it imports torch and warms up, too
TOLERANCE = 0.15  # of a prediction
ITERATIONS_PER_SAMPLE = 5  # eager and captured steps, in bursts


def time_programs(name, settings, pairs, folder):
    """Microseconds per step of programs and of the same under the recorder, which take turns; and what one recorded."""
    quick = ["--quick"] if settings.quick else []
    command = [sys.executable, str(PROGRAM), name, "--device", settings.device, *quick]
    recorder = [str(settings.build / "apps" / "pianola"), "profile", "--output"]
    with contextlib.ExitStack() as stack:
        workers = []
        for i in range(pairs):
            for contender, prefix in ((PLAIN, []), (UNDER_RECORDER, [*recorder, str(folder / str(i)), "--"])):
                worker = WorkerProcess(contender, prefix + command, ANSWER_TIMEOUT_S, {})
                workers.append(stack.enter_context(worker))
        samples = alternate_workers(workers, 2 if settings.quick else SAMPLES)
        for worker in workers:
            worker.let_end()
    return samples, pianola.decide(folder / "0")


def alternate_workers(workers, rounds):
    """Their samples; one of each comes before that does not count."""
    samples = {worker.name: [] for worker in workers}  # of processes of one kind together
    for turn in range(-1, rounds):
        for worker in workers if turn % 2 else workers[::-1]:
            wall = worker.ask(do="train")["wall"]
            if turn >= 0:
                samples[worker.name].append(wall)
    return samples


def whole_iteration(profile):
    """Its prediction, whatever may stand in its way; None: it cannot be told."""
    return next((scope for scope in profile.scopes if scope.scope == WHOLE and scope.expected_us > 0), None)


def right_verdict(eager, graphed):
    """As decide() has them, with what was measured in the place of what was predicted."""
    speedup = eager / graphed
    return "graph" if speedup >= 1.15 else "small gain" if speedup >= 1.05 else "leave"


def require_foretold(target, contender, profile, eager, graphed):
    """The time within its tolerance, and the verdict that what was measured leads to."""
    foretold = whole_iteration(profile)
    error = abs(foretold.expected_us / graphed - 1) if foretold else 1
    measuring.require(target, f"{contender}: within {TOLERANCE:.0%} of {STEP}", error, TOLERANCE, error <= TOLERANCE)
    expected = right_verdict(eager, graphed)
    measuring.require(target, f"{contender}: says '{profile.verdict}', and '{expected}' is right", eager / graphed, 1.15,
                      profile.verdict == expected)


def memory_cases(workload, foretold):
    """What a graph of the whole step takes; `foretold`: its scope in a profile."""
    graph = pianola.Graph(workload.device)
    graph.capture(Training(workload, EAGER).graph().step)
    info = graph.info()
    for measured, field in (("device memory of a graph's pool", "pool_bytes"),
                            ("device memory of an executable graph", "executable_bytes")):
        samples = {TAKEN: [getattr(info, field) / MIB], FORETOLD: [getattr(foretold, field) / MIB]}
        yield case(workload.title, measured, 1, FORETOLD, samples, unit="MiB", notes=[f"a graph of {info.nodes} nodes"])


def prediction_cases(settings, workload, steps, recorded, program):
    """`recorded`: what `pianola profile` found, or None; `program`: microseconds of a step in such programs, unrecorded."""
    # Convolutions and embeddings add in another order each time: the loss is compared, up to rounding.
    reference = Reference(workload)
    eager, graphed = reference.training, Training(workload, STEP).graph()
    reference.check_close(graphed)
    profiles = {IN_PROCESS: pianola.profile(eager.step, iterations=settings.some(10))}
    if recorded is not None:
        profiles[RECORDED] = recorded
    samples = alternate({EAGER: eager.step, STEP: graphed.step}, steps, max(1, steps // ITERATIONS_PER_SAMPLE), settings.rounds)
    require_replayed(graphed)
    wall = series(samples, "wall")
    told = {name: profile for name, profile in profiles.items() if whole_iteration(profile)}
    foretold = {name: [whole_iteration(profile).expected_us] for name, profile in told.items()}
    notes = [f"{name.removeprefix('predicted by ')}: {' '.join([profile.headline, *profile.obstacles])}"
             for name, profile in profiles.items()]
    if program:
        notes.append(f"the program that was recorded takes {statistics.median(program):.0f} us per step without the recorder")
    made = case(workload.title, "time per step", steps, EAGER, wall | foretold, notes=notes)
    if settings.device == "cuda":
        graphed_time = statistics.median(wall[STEP])
        require_foretold(made, IN_PROCESS, profiles[IN_PROCESS], statistics.median(wall[EAGER]), graphed_time)
        # Eager steps of another process take another time, and so gain something else.
        require_foretold(made, RECORDED, recorded, statistics.median(program), graphed_time)
    yield made
    if settings.device == "cuda" and IN_PROCESS in told:  # the tape has no pool
        yield from memory_cases(workload, whole_iteration(profiles[IN_PROCESS]))


def overhead_case(name, profiled, settings, samples):
    made = case(profiled.workload.title, "time per step of a program", profiled.steps, PLAIN, samples)
    measuring.require_ratio(made, UNDER_RECORDER, PLAIN, samples[UNDER_RECORDER], samples[PLAIN], profiled.overhead)
    return made


def cases_of(name, settings):
    profiled = WORKLOADS[name](settings)
    recorded, overhead = None, None
    samples = {PLAIN: []}
    if settings.device == "cuda":
        with tempfile.TemporaryDirectory(prefix="pianola-bench-") as folder:
            pairs = 1 if settings.quick else profiled.pairs
            samples, recorded = time_programs(name, settings, pairs, Path(folder))
        if profiled.overhead:
            overhead = overhead_case(name, profiled, settings, samples)
    yield from prediction_cases(settings, profiled.workload, profiled.steps, recorded, samples[PLAIN])
    if overhead:
        yield overhead


def run(settings):
    torch.backends.cuda.matmul.allow_tf32 = True  # as training has it
    for name in WORKLOADS:
        package = PACKAGES.get(name)
        if package and importlib.util.find_spec(package) is None:
            settings.notes.append(f"{package} is not installed: its model is left out")
        else:
            yield from cases_of(name, settings)
