"""Compares graphed callables of two programs: torch's own, which are Python's, with Pianola's in C++.

    bench/callables/compare.py [NAME...] [--build build/release] [--out FOLDER] [--quick | --self-test]

Starts torch_worker.py under this Python, whose torch has to be the one that Pianola was built with, and `pianola_bench
--serve`. Both keep their work ready and time it block by block in turn, so that a machine whose clocks move slows both;
the one whose turn it is not waits for its input. Leaves FOLDER/<group>_<name>.json for each NAME (all, without one).

--self-test runs a little of everything on the CPU, without figures: torch's contenders are eager there.
"""

import argparse
import json
import math
import shlex
import sys
from pathlib import Path

import case_report
from worker_process import WorkerError, WorkerProcess

HERE = Path(__file__).resolve().parent
TORCH = "torch.cuda.make_graphed_callables"
PIANOLA = "pianola::make_graphed_callables"
TIMEOUT_S = 240  # for one request; the longest prepares a callable of 1024 parameters

# Iterations per sample, by the number of parameters; all in bursts of one length, so that they can be compared.
HOST_ITERATIONS = {1: 60, 8: 60, 64: 40, 256: 20, 1024: 20}
HOST_BURST = 20
STEP_ITERATIONS = 20
STEP_BURST = 10


class Workers:
    """Both programs, and the rounds in which they take turns."""

    def __init__(self, options):
        self.device = "cpu" if options.self_test else "cuda"
        self.quick = options.quick or options.self_test
        self.rounds = 2 if self.quick else 10
        program = options.build / "bench/pianola_bench"
        commands = {TORCH: [sys.executable, HERE / "torch_worker.py"], PIANOLA: [program, "--serve"]}
        # On the CPU, the threads of one program would wait for cores that the other one's still hold.
        environment = {"OMP_NUM_THREADS": "1"} if options.self_test else {}
        self.processes = {}
        try:
            for name, command in commands.items():
                self.processes[name] = WorkerProcess(name, [str(word) for word in command], TIMEOUT_S, environment)
            self.machine = self._describe()
        except WorkerError:
            self.kill()
            raise

    def _describe(self):
        python = self.processes[TORCH].ask(do="describe")
        machine = self.processes[PIANOLA].ask(do="describe")
        if python["torch"].split("+")[0] != machine["torch"]:
            raise WorkerError(f"{sys.executable} has torch {python['torch']}, but Pianola was built with "
                              f"{machine['torch']}: run this by the Python of that torch")
        if self.device == "cuda" and "device" not in machine:
            raise WorkerError("there is no CUDA device, or Pianola was built without CUDA")
        return machine | {"python": python["python"]}

    def some(self, iterations):
        """So many, or a few where only the running counts."""
        return min(iterations, 3) if self.quick else iterations

    def prepare(self, case, **request):
        """Both programs make the case, and have to get the same numbers from it."""
        checks = [process.ask(do="prepare", case=case, device=self.device, **request)["check"]
                  for process in self.processes.values()]
        if not all(math.isclose(one, other, rel_tol=1e-3) for one, other in zip(*checks, strict=True)):
            raise WorkerError(f"{case}: the programs do different work: their numbers are {checks[0]} and {checks[1]}")

    def alternate(self, entries):
        """Samples of each entry (worker, case, contender, iterations, burst): {entry: {"host": [...], "wall": [...]}}.

        Each round begins with another entry; one comes before that does not count.
        """
        samples = {entry: {"host": [], "wall": []} for entry in entries}
        for turn in range(-1, self.rounds):
            for i in range(len(entries)):
                entry = entries[(i + turn) % len(entries)]
                worker, case, contender, iterations, burst = entry
                answer = self.processes[worker].ask(
                    do="measure", case=case, contender=contender, iterations=iterations, burst=burst)
                if turn >= 0:
                    for time, taken in samples[entry].items():
                        taken.append(answer[time])
        return samples

    def release(self):
        for process in self.processes.values():
            process.ask(do="release")

    def close(self):
        for process in self.processes.values():
            process.close()

    def kill(self):
        for process in self.processes.values():
            process.kill()


def host_cases(title, measured, iterations):
    """Cases of one model and one way with gradients, by size; `measured`: {(worker, size): samples by kind}."""
    cases = []
    for kind, measure in (("host", "host time of forward and backward"), ("wall", "forward and backward until done")):
        for size, count in iterations.items():
            series = {worker: measured[worker, size][kind] for worker in (TORCH, PIANOLA)}
            name = f"{title}: {size} parameter{'s' if size > 1 else ''}"
            cases.append(case_report.case(name, measure, count, TORCH, series))
    return cases


def require_flat(cases, measured):
    """The bars, for the steady state: no cost per parameter. The first of `cases` are the host times by size."""
    by_size = dict(zip(HOST_ITERATIONS, cases))
    for size, speedup in ((1, 2), (256, 10)):
        series = {worker: measured[worker, size]["host"] for worker in (TORCH, PIANOLA)}
        case_report.require_speedup(by_size[size], PIANOLA, TORCH, series, speedup)
    few, many = (measured[PIANOLA, size]["host"] for size in (8, 1024))
    case_report.require_ratio(by_size[1024], PIANOLA, "its own time at 8 parameters", many, few, 1.15)


def callable_host(workers):
    cases = []
    for model, words in (("sum", "sum of parameters"), ("linear", "chain of linear layers")):
        # A layer has two parameters, so that no chain has one.
        sizes = [size for size in HOST_ITERATIONS if model == "sum" or size > 1]
        iterations = {size: workers.some(HOST_ITERATIONS[size]) for size in sizes}
        for size in iterations:
            workers.prepare(f"{model} {size}", kind="callable", model=model, parameters=size)
        for contender in ("accumulate", "set to none"):
            entries = [(worker, f"{model} {size}", contender, count, HOST_BURST)
                       for size, count in iterations.items() for worker in (TORCH, PIANOLA)]
            samples = workers.alternate(entries)
            measured = {(entry[0], int(entry[1].split()[1])): taken for entry, taken in samples.items()}
            gradients = "gradients accumulated" if contender == "accumulate" else "gradients set to none before"
            made = host_cases(f"{words}, {gradients}", measured, iterations)
            if (model, contender) == ("sum", "accumulate"):
                require_flat(made, measured)
            cases += made
        workers.release()
    return cases


STEP_CONTENDERS = {  # label -> worker, contender
    "eager Python": (TORCH, "eager"),
    f"{TORCH}, whole": (TORCH, "whole"),
    f"{TORCH}, per layer": (TORCH, "per layer"),
    "eager C++": (PIANOLA, "eager"),
    f"{PIANOLA}, whole": (PIANOLA, "whole"),
    f"{PIANOLA}, per layer": (PIANOLA, "per layer"),
}


def step_cases(title, layers, measured, iterations):
    """`measured`: {label: samples by kind}."""
    wall = {label: taken["wall"] for label, taken in measured.items()}
    host = {label: taken["host"] for label, taken in measured.items()}
    torch_whole, ours_whole, ours_per_layer = f"{TORCH}, whole", f"{PIANOLA}, whole", f"{PIANOLA}, per layer"
    time = case_report.case(title, "time per step", iterations, torch_whole, wall)
    case_report.require_speedup(time, ours_whole, torch_whole, wall, 1.5)
    case_report.require_ratio(time, ours_per_layer, ours_whole, wall[ours_per_layer], wall[ours_whole], 1.3)
    further = {
        worker: [(per_layer - whole) / (layers - 1)
                 for whole, per_layer in zip(wall[f"{worker}, whole"], wall[f"{worker}, per layer"])]
        for worker in (TORCH, PIANOLA)
    }
    return [
        time,
        case_report.case(title, "host time per step", iterations, torch_whole, host),
        case_report.case(f"{title}, {layers} callables instead of one", "time per further callable", iterations,
                         TORCH, further),
    ]


def callable_training_step(workers):
    cases = []
    iterations = workers.some(STEP_ITERATIONS)
    for model, layers, title in (("mlp", 16, "MLP 16 x 64, batch 32, Adam outside"),
                                 ("transformer", 8, "transformer 8 x 256, batch 2 x 64, Adam outside")):
        workers.prepare(model, kind="training", model=model)
        entries = {(worker, model, contender, iterations, STEP_BURST): label
                   for label, (worker, contender) in STEP_CONTENDERS.items()}
        samples = workers.alternate(list(entries))
        measured = {label: samples[entry] for entry, label in entries.items()}
        cases += step_cases(title, layers, measured, iterations)
        workers.release()
    return cases


BENCHMARKS = {
    "cuda/callable_host": (callable_host, "Forward and backward of a graphed callable, by its number of parameters"),
    "cuda/callable_training_step": (callable_training_step, "Training step with graphed callables, optimizer outside"),
}


def parse(arguments):
    parser = argparse.ArgumentParser(description="Compares graphed callables of torch and Pianola.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; all without one")
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--out", type=Path, help="folder for the results; nothing is written without")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--quick", action="store_true", help="only to see that it runs")
    mode.add_argument("--self-test", action="store_true", help="on the CPU, without figures")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark {unknown[0]}: there are {', '.join(BENCHMARKS)}")
    return options


def run(name, workers, out):
    function, title = BENCHMARKS[name]
    cases = function(workers)
    if workers.device == "cpu":
        print(f"{name}: {len(cases)} cases ran; figures of a self-test mean nothing")
        return
    print(f"{name}: {title}\n")
    print("\n\n".join(case_report.to_text(one) for one in cases) + "\n", flush=True)
    if out:
        document = {"machine": workers.machine, "command": shlex.join(["bench/callables/compare.py", *sys.argv[1:]]),
                    "results": [{"benchmark": name, "title": title, "cases": cases}]}
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{name.replace('/', '_')}.json").write_text(json.dumps(document, indent=1) + "\n")


def main(arguments):
    options = parse(arguments)
    try:
        workers = Workers(options)
    except WorkerError as error:
        print(f"compare.py: {error}", file=sys.stderr)
        return 1
    try:
        for name in options.names or BENCHMARKS:
            run(name, workers, options.out)
    except WorkerError as error:
        workers.kill()
        print(f"compare.py: {error}", file=sys.stderr)
        return 1
    except BaseException:
        workers.kill()
        raise
    workers.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
