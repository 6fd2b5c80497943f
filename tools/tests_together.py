"""Runs the tests of a GPU side by side, where one after the other takes longer than the GPU is to be had. Each has one thread.

    tests_together.py PRESET [--jobs N] [--workers N] [--files] [--gpus N] [--limit SECONDS] [--json FILE] [--without NAME]... [NAME ...]

Takes what `make gpu-test` runs, or the tests named. The files of a folder of Python tests are spread over workers where pytest-xdist is
installed; with --files each is a test of its own, without its cases of the CPU, on one of the N GPUs if it is not about ranks. A line
for each test as it ends, with what it printed if it failed; then `N passed, N failed, N skipped`. FILE has the form of
bench/results/h200/checks/tests.json, and is written anew as each test ends. Nothing that was started is left running.
"""

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from run_tests import ROOT, count_cases

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
ALONE = ("soak",)  # it measures the memory of the device, which others would take
KINDS = ("passed", "failed", "skipped")
RECORDED = ROOT / "bench/results/h200/checks/tests.json"
SHOWN = 40_000  # characters of what a failed test printed


def known(preset):
    """{name: (command, folder, environment)} of the tests that use a device."""
    listed = subprocess.run(["ctest", "--preset", preset, "--show-only=json-v1", "--label-regex", "device"],
                            cwd=ROOT, text=True, stdout=subprocess.PIPE, check=True).stdout
    tests = {}
    for test in json.loads(listed)["tests"]:
        properties = {one["name"]: one["value"] for one in test["properties"]}
        if "command" not in test:
            raise SystemExit(f"{test['name']} is not built: make build")
        changes = [one.partition("=") for one in properties.get("ENVIRONMENT", ())]
        changes += [(name, "", value.removeprefix("set:")) for name, _, value in
                    (one.partition("=") for one in properties.get("ENVIRONMENT_MODIFICATION", ()))]
        environment = os.environ | {name: "1" for name in THREADS} | {name: value for name, _, value in changes}
        tests[test["name"]] = test["command"], properties.get("WORKING_DIRECTORY"), environment
    return tests


def by_file(tests, gpus):
    """`tests`, each folder of Python tests as a test for each of its files."""
    split = {}
    for name, (command, folder, environment) in tests.items():
        if "pytest" not in command:
            split[name] = command, folder, environment
            continue
        left_out = [ROOT / one.removeprefix("--ignore=") for one in command if one.startswith("--ignore=")]
        kept = [one for one in command if not one.startswith(("--ignore=", "--junitxml=")) and not (ROOT / one).is_dir()]
        for file in sorted(file for one in command if (ROOT / one).is_dir() for file in (ROOT / one).rglob("*_test.py")):
            if any(file.is_relative_to(one) for one in left_out):
                continue
            mine = {} if "ranks" in file.name else {"CUDA_VISIBLE_DEVICES": str(len(split) % gpus)}
            path = str(file.relative_to(ROOT))
            split[path] = [*kept, path, "-k", "not cpu"], folder, environment | mine
    return split


def run(name, test, options):
    """(name, status, counts, seconds)"""
    command, folder, environment = test
    results = ROOT / "build" / options.preset / "test-results" / f"{name.replace('/', '.')}.xml"
    results.parent.mkdir(parents=True, exist_ok=True)
    results.unlink(missing_ok=True)
    if options.files and "pytest" in command:
        command = [*command, f"--junitxml={results}"]
    elif "pytest" in command and importlib.util.find_spec("xdist"):
        command = [*command, "-n", str(options.workers), "--dist", "loadfile"]
    begin = time.monotonic()
    child = subprocess.Popen(command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             errors="replace", start_new_session=True)
    try:
        output, status = child.communicate(timeout=options.limit)[0], child.returncode
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGINT)  # pytest tells what it has found
        try:
            output = child.communicate(timeout=10)[0]
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            output = child.communicate()[0]
        status = 124
    try:  # workers that their pytest left behind
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    counts = count_cases(results) if results.exists() and results.stat().st_size else {}
    if not counts or (status != 0 and not counts.get("failed")):
        counts = {"passed": int(status == 0), "failed": int(status != 0)}
    seconds = time.monotonic() - begin
    told = ", ".join(f"{counts.get(kind, 0)} {kind}" for kind in KINDS)
    what = f"\n===== {name}\n{output[-SHOWN:]}" if status != 0 else ""
    print(f"{name:20} {told}, status {status}, {seconds:.0f} s{what}", flush=True)  # now: whoever waits may not wait to the end
    return name, status, counts, seconds


def longest_first(names):
    """What took longest on an H200 begins first; what has not run there counts as a minute."""
    took = {Path(row["test"]).name: row.get("seconds", 60) for row in json.loads(RECORDED.read_text())["tests"]}
    return sorted(names, key=lambda name: -took.get(Path(name).name, 60))


def parse(arguments):
    parser = argparse.ArgumentParser(description="Runs the tests of a GPU side by side.")
    parser.add_argument("preset")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--jobs", type=int, default=5, help="tests at once")
    parser.add_argument("--workers", type=int, default=5, help="processes of a folder of Python tests")
    parser.add_argument("--files", action="store_true", help="a test for each file of Python tests")
    parser.add_argument("--gpus", type=int, default=1, help="GPUs over which --files spreads them")
    parser.add_argument("--limit", type=float, default=900, help="seconds that a test may take")
    parser.add_argument("--without", action="append", default=[], help="a test, or a folder of tests, that is left out")
    parser.add_argument("--json", type=Path)
    return parser.parse_intermixed_args(arguments)


def main(arguments):
    options = parse(arguments)
    tests = known(options.preset)
    if options.files:
        tests = by_file(tests, options.gpus)
    if unknown := set(options.names) - set(tests):
        raise SystemExit(f"no such test: {', '.join(sorted(unknown))}; there are {', '.join(tests)}")
    chosen = {name: tests[name] for name in options.names or tests if not name.startswith(tuple(options.without))}
    done, writing = [], threading.Lock()

    def run_and_write(name):
        done.append(run(name, chosen[name], options))
        if not options.json:
            return
        with writing:
            rows = [{"test": name, **{kind: counts.get(kind, 0) for kind in KINDS}, "exit": status, "seconds": round(seconds)}
                    for name, status, counts, seconds in sorted(done)]
            options.json.write_text(json.dumps({"tests": rows}, indent=1) + "\n")

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(run_and_write, longest_first(name for name in chosen if name not in ALONE)))
    for name in chosen:
        if name in ALONE:
            run_and_write(name)
    total = {kind: sum(counts.get(kind, 0) for _, _, counts, _ in done) for kind in KINDS}
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 0 if all(status == 0 for _, status, _, _ in done) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
