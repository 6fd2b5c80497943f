"""Runs the benchmarks that this machine can run, each in a process of its own, so that none sees another's memory.

    bench/run.py [--build build/release] [--out FOLDER] [--device auto|cpu|cuda] [FILTER]

Those of the Python package, among them the comparisons with torch's own graphs, need a Python with the torch that Pianola
was built with: the one that runs this, or --python. The package is taken from BUILD/python if it was built there; where it
cannot be imported, they are left out.

Leaves FOLDER/<group>_<name>.json for each; FOLDER is <build>/bench-results by default. Fails if a benchmark failed, not
if a requirement was missed. To renew the committed figures, and the page made from them:

    bench/run.py --device cpu --out bench/results/cpu
    bench/run.py --device cuda --out bench/results/h200
    tools/benchmark_docs.py
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

# What bench/python/main.py runs, of the Python package.
PYTHON = ("cpu/python_audit", "cpu/python_guards", "cpu/python_import", "cpu/python_scopes", "cpu/python_tape", "cuda/python_audit",
          "cuda/python_branches", "cuda/python_callables", "cuda/python_capture", "cuda/python_choices", "cuda/python_compiled", "cuda/python_decoding", "cuda/python_experts",
          "cuda/python_experts_ranks", "cuda/python_first_replay", "cuda/python_fp8",
          "cuda/python_full_iteration", "cuda/python_graphed", "cuda/python_guards", "cuda/python_islands",
          "cuda/python_layers", "cuda/python_models", "cuda/python_optimizers",
          "cuda/python_profile", "cuda/python_ranks", "cuda/python_replay", "cuda/python_scopes", "cuda/python_sharded", "cuda/python_trainers")
PYTHON_MAIN = Path(__file__).parent / "python/main.py"


def parse(arguments):
    parser = argparse.ArgumentParser(description="Runs Pianola's benchmarks.")
    parser.add_argument("filter", nargs="?", default="", help="run the one of this name, or those whose name contains it")
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--out", type=Path, help="folder for the results")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--python", default=sys.executable, help="Python for what is measured in Python")
    parser.add_argument("--quick", action="store_true", help="only to see that the benchmarks run")
    return parser.parse_args(arguments)


def requirements(file):
    """(met, missed) of one result."""
    cases = [case for result in json.loads(file.read_text())["results"] for case in result["cases"]]
    met = [requirement["met"] for case in cases for requirement in case["requirements"]]
    return sum(met), len(met) - sum(met)


def listed(program, device):
    """What pianola_bench can run on the device; empty if there is no such device."""
    ran = subprocess.run([program, "--device", device, "--list"], text=True, stdout=subprocess.PIPE)
    return ran.stdout.split() if ran.returncode == 0 else []


def selected(program, options):
    names = listed(program, options.device)
    groups = {name.partition("/")[0] for name in names}
    names += [name for name in PYTHON if name.partition("/")[0] in groups]
    return [options.filter] if options.filter in names else [name for name in names if options.filter in name]


def environment_of(options):
    """In which `import pianola` finds the package of the build, if it has one."""
    package = options.build.resolve() / "python"
    if not any((package / "pianola").glob("_C.*.so")):
        return os.environ
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(package), os.environ.get("PYTHONPATH"))))}


def missing_package(options, environment):
    """Why the Python package cannot be imported; empty if it can."""
    program = "import sys; del sys.path[0]; import pianola"  # not the sources' folder `pianola`, which is here
    ran = subprocess.run([options.python, "-c", program], text=True, stderr=subprocess.PIPE, env=environment)
    return ran.stderr.strip().splitlines()[-1] if ran.returncode else ""


def command(name, program, out, options):
    """Runs one benchmark, which leaves its file in the folder `out`."""
    quick = ["--quick"] if options.quick else []
    if name in PYTHON:
        return [options.python, PYTHON_MAIN, name, "--build", options.build, "--out", out, *quick]
    return [program, name, "--json", file_of(name, out), *quick]


def file_of(name, out):
    return out / f"{name.replace('/', '_')}.json"


def main(arguments):
    options = parse(arguments)
    program = options.build / "bench/pianola_bench"
    if not program.exists():
        print(f"{program} is missing: build first, as `make bench` does", file=sys.stderr)
        return 1
    names = selected(program, options)
    environment = environment_of(options)
    left_out = missing_package(options, environment) if any(name in PYTHON for name in names) else ""
    if left_out:
        print(f"left out {', '.join(name for name in names if name in PYTHON)}: {left_out}", file=sys.stderr)
        names = [name for name in names if name not in PYTHON]
    if not names:
        print(f"no benchmark to run for '{options.filter}' on {options.device}", file=sys.stderr)
        return 1
    out = options.out or options.build / "bench-results"
    out.mkdir(parents=True, exist_ok=True)
    failed, met, missed = [], 0, 0
    for name in names:
        if subprocess.run(command(name, program, out, options), env=environment).returncode:
            failed.append(name)
            continue
        counts = requirements(file_of(name, out))
        met, missed = met + counts[0], missed + counts[1]
    print(f"{len(names)} benchmarks, {met} requirements met, {missed} missed, {len(failed)} failed: results in {out}")
    for name in failed:
        print(f"failed: {name}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
