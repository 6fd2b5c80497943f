"""Runs the benchmarks that this machine can run, each in a process of its own, so that none sees another's memory.

    bench/run.py [--build build/release] [--out FOLDER] [--device auto|cpu|cuda] [FILTER]

Leaves FOLDER/<group>_<name>.json for each; FOLDER is <build>/bench-results by default. Fails if a benchmark failed, not
if a requirement was missed. To renew the committed figures, and the page made from them:

    bench/run.py --device cpu --out bench/results/cpu
    bench/run.py --device cuda --out bench/results/h200
    tools/benchmark_docs.py
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path


def parse(arguments):
    parser = argparse.ArgumentParser(description="Runs Pianola's benchmarks.")
    parser.add_argument("filter", nargs="?", default="", help="run those whose name contains this")
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--out", type=Path, help="folder for the results")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--quick", action="store_true", help="only to see that the benchmarks run")
    return parser.parse_args(arguments)


def requirements(file):
    """(met, missed) of one result."""
    cases = [case for result in json.loads(file.read_text())["results"] for case in result["cases"]]
    met = [requirement["met"] for case in cases for requirement in case["requirements"]]
    return sum(met), len(met) - sum(met)


def main(arguments):
    options = parse(arguments)
    program = options.build / "bench/pianola_bench"
    if not program.exists():
        print(f"{program} is missing: build first, as `make bench` does", file=sys.stderr)
        return 1
    selection = [options.filter, "--device", options.device] if options.filter else ["--device", options.device]
    listed = subprocess.run([program, *selection, "--list"], text=True, stdout=subprocess.PIPE)
    names = listed.stdout.split()
    if listed.returncode or not names:
        print(f"no benchmark to run for '{options.filter}' on {options.device}", file=sys.stderr)
        return 1
    out = options.out or options.build / "bench-results"
    out.mkdir(parents=True, exist_ok=True)
    failed, met, missed = [], 0, 0
    for name in names:
        file = out / f"{name.replace('/', '_')}.json"
        command = [program, name, "--json", file] + (["--quick"] if options.quick else [])
        if subprocess.run(command).returncode:
            failed.append(name)
            continue
        counts = requirements(file)
        met, missed = met + counts[0], missed + counts[1]
    print(f"{len(names)} benchmarks, {met} requirements met, {missed} missed, {len(failed)} failed: results in {out}")
    for name in failed:
        print(f"failed: {name}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
