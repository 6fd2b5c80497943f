"""Benchmarks of Pianola from Python: contenders that are all Python's take turns in one process.

    bench/python/main.py NAME [--build build/release] [--out FOLDER] [--quick | --self-test]

Wants `import pianola` to work: installed, or PYTHONPATH=<build>/python. Leaves FOLDER/<group>_<name>.json, in the form of
bench/results/README.md; `notes` of a case or result say what is missing from it, and why. Each NAME wants a process of its
own, as bench/run.py makes them, because libraries read their settings once.

--self-test runs a little on the CPU, without figures: what only CUDA has is left out, or eager.
"""

import argparse
import dataclasses
import importlib
import json
import os
import shlex
import sys
import traceback
from pathlib import Path

STOPPED = "it was stopped before its end"

BENCHMARKS = {
    "cpu/python_audit": "Training step of an MLP on one thread, from Python, plain and audited",
    "cpu/python_guards": "What a call takes to see that all that its step read is as it was: ResNet-50's training",
    "cpu/python_import": "What importing pianola costs",
    "cpu/python_scopes": "Training steps by the scope of the graph, on the tape, from Python",
    "cpu/python_tape": "Training step of an MLP on one thread: @pianola.graphed against eager Python",
    "cuda/python_audit": "Launch-bound training step, from Python, plain and audited",
    "cuda/python_account": "Memory of the device in training steps of ten models: the account's lines, against what the driver says",
    "cuda/python_branches": "Training steps of a transformer, ResNet-18 and GPT-2 in parallel branches, from Python",
    "cuda/python_buckets": "Pools of graphs at 16 lengths, by the order of their captures, against the largest alone",
    "cuda/python_callables": "Forward and backward of a graphed callable from Python, by its number of parameters",
    "cuda/python_capture": "Captures from Python: torch's own classes, and the same names under compat()",
    "cuda/python_choices": "Which scope try_scopes takes for eight steps, against the fastest by hand",
    "cuda/python_compiled": "Training steps of compiled models: alone, with torch's graphs, and in the graph of a whole step",
    "cuda/python_decoding": "Decoding by GPT-2 where an int says the position, and the host time that the change takes",
    "cuda/python_executables": "Executables of a pool's graphs: one for each, and those that graphs which are alike share",
    "cuda/python_experts": "Training steps of a transformer with experts on one GPU, in one graph",
    "cuda/python_experts_ranks": "Training steps of a transformer with experts on two GPUs, whose tokens the host counts",
    "cuda/python_first_replay": "From the last warm-up call to the first replay, with AdamW as it comes, and what that leaves in memory",
    "cuda/python_fp8": "Linear layers in 8 bits: casts, and forward and backward passes, against bfloat16",
    "cuda/python_full_iteration": "Whole training iterations from Python: one graph, against a graph of a part",
    "cuda/python_graphed": "Training steps whose graphs make themselves: steady state, and time to the first replay",
    "cuda/python_guards": "What a call takes to see that all that its step read is as it was: ResNet-50's training",
    "cuda/python_islands": "Steps with one read of a value: in a part that stays eager, against two graphs made by hand",
    "cuda/python_layers": "Training whose layers are graphs: by one call, by hand, and the whole iteration",
    "cuda/python_memory": "Pools of training steps' graphs: what is told before the capture, and what they take",
    "cuda/python_models": "Training steps of GPT-2 and ResNet-18, bit-equal to eager with deterministic algorithms",
    "cuda/python_optimizers": "Training steps with optimizers as they come, whose numbers the host computes at each call",
    "cuda/python_profile": "What profiles of training steps foretell, against what their graphs take; the recorder's cost",
    "cuda/python_ranks": "Training steps of DistributedDataParallel on two GPUs, from Python",
    "cuda/python_sharded": "Training steps of fully_shard on two GPUs, from Python",
    "cuda/python_replay": "Host time of replaying a training step from Python",
    "cuda/python_scopes": "Training steps by the scope of the graph: torch's graphs and Pianola's, from Python",
    "cuda/python_sleep": "Pools that give their memory back: what goes, and how long it takes",
    "cuda/python_trainers": "Training by transformers' Trainer, Lightning and accelerate, as it comes and with its steps replayed",
}


@dataclasses.dataclass
class Settings:
    device: str
    build: Path
    quick: bool
    out: Path | None = None  # folder, for what a benchmark leaves beside its result
    notes: list = dataclasses.field(default_factory=list)  # what the benchmark has to say about all of its cases

    @property
    def rounds(self):
        return 2 if self.quick else 10

    def some(self, iterations):
        """So many, or a few where only the running counts."""
        return min(iterations, 3) if self.quick else iterations


def parse(arguments):
    parser = argparse.ArgumentParser(description="Runs one of Pianola's benchmarks in Python.")
    parser.add_argument("name", metavar="NAME", choices=BENCHMARKS, help=f"one of {', '.join(BENCHMARKS)}")
    parser.add_argument("--build", type=Path, default=Path("build/release"), help="where bench/pianola_bench is")
    parser.add_argument("--out", type=Path, help="folder for the result; nothing is written without")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--quick", action="store_true", help="only to see that it runs")
    mode.add_argument("--self-test", action="store_true", help="on the CPU, without figures")
    return parser.parse_args(arguments)


def measure(name, settings, show):
    """The result as the file has it; `show` is called with it after each case. What fails is in "error"."""
    result = {"benchmark": name, "title": BENCHMARKS[name], "cases": []}
    try:
        # Imported here, because some set variables of the environment that torch reads.
        for case in importlib.import_module(name.partition("/")[2]).run(settings):
            result["cases"].append(case)
            show(result)
    except Exception as error:  # whatever it is, what was measured before is worth reporting
        traceback.print_exc()
        result["error"] = f"{type(error).__name__}: {error}"
    return result | {"notes": settings.notes} if settings.notes else result


def write(result, out):
    from machine import describe_machine

    document = {"machine": describe_machine(), "command": shlex.join(["bench/python/main.py", *sys.argv[1:]]),
                "results": [result]}
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{result['benchmark'].replace('/', '_')}.json").write_text(json.dumps(document, indent=1) + "\n")


def main(arguments):
    options = parse(arguments)
    if options.self_test:
        os.environ["OMP_NUM_THREADS"] = "1"  # others may have the cores
    device = "cpu" if options.self_test else options.name.partition("/")[0]
    settings = Settings(device, options.build, quick=options.quick or options.self_test,
                        out=None if options.self_test else options.out)

    def show(result):
        if options.self_test:
            return
        import measuring  # by now the benchmark has set what torch reads

        case = result["cases"][-1]
        counts = ", ".join(str(len(contender["samples"])) for contender in case["contenders"])
        print("\n".join([measuring.to_text(case), f"samples: {counts}", *case.get("notes", ())]) + "\n", flush=True)
        if options.out:  # should it be stopped before the end
            write(result | {"error": STOPPED}, options.out)

    print(f"{options.name}: {BENCHMARKS[options.name]}\n", flush=True)
    result = measure(options.name, settings, show)
    for note in settings.notes:
        print(f"{options.name}: {note}")
    if options.self_test:
        print(f"{options.name}: {len(result['cases'])} cases ran; figures of a self-test mean nothing")
    elif options.out:
        write(result, options.out)
    if "error" in result:
        print(f"{options.name}: failed: {result['error'].splitlines()[0]}", file=sys.stderr)
    return 1 if "error" in result else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
