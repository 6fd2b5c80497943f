"""Builds the fuzzers of tests/fuzz with sanitizers and runs each for a while; fails if one of them found something.

    fuzz.py [--seconds 600] [--jobs 2] [reader ...]

With clang++ they are driven by libFuzzer (preset `fuzz`), else by the driver of tests/fuzz (preset `asan`). What they find is
written to build/<preset>/findings, and is run again by build/<preset>/tests/fuzz/pianola_fuzz_<reader> FILE.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT / "tests" / "fuzz" / "corpus"
PREFIX = "pianola_fuzz_"
IN_PYTHON = ROOT / "tests" / "fuzz" / "nsight_fuzz.py"
OPTIONS = {"UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
           "ASAN_OPTIONS": "detect_leaks=1:protect_shadow_gap=0:new_delete_type_mismatch=0",
           "LSAN_OPTIONS": f"suppressions={ROOT}/tests/sanitizer/leaks.supp:print_suppressions=0"}


def clang():
    """The newest clang++ there is; None where there is none."""
    names = ["clang++", *(f"clang++-{version}" for version in range(30, 13, -1))]
    return next((name for name in names if shutil.which(name)), None)


def build(jobs):
    """The preset that was built, and the fuzzers by the names of their readers."""
    compiler = clang()
    preset = "fuzz" if compiler else "asan"
    given = [f"-DCMAKE_CXX_COMPILER={compiler}"] if compiler else []
    subprocess.run(["cmake", "--preset", preset, f"-DPIANOLA_PYTHON={sys.executable}", *given], cwd=ROOT, check=True)
    subprocess.run(["cmake", "--build", f"build/{preset}", "--target", "fuzzers", "--parallel", str(jobs)], cwd=ROOT,
                   check=True)
    programs = sorted((ROOT / "build" / preset / "tests" / "fuzz").glob(PREFIX + "*"))
    programs = [path for path in programs if path.is_file() and os.access(path, os.X_OK)]
    return preset, {path.name.removeprefix(PREFIX): path for path in programs} | {IN_PYTHON.stem.removesuffix("_fuzz"): IN_PYTHON}


def command(preset, reader, program, seconds):
    findings = ROOT / "build" / preset / "findings"
    findings.mkdir(parents=True, exist_ok=True)
    if program == IN_PYTHON:
        return [sys.executable, program, "--seconds", str(seconds), "--findings", findings]
    corpus = CORPUS / reader
    if preset == "asan":
        return [program, "--seconds", str(seconds), "--findings", findings, corpus]
    grown = ROOT / "build" / preset / "corpus" / reader  # What libFuzzer finds worth keeping, for the next time.
    grown.mkdir(parents=True, exist_ok=True)
    return [program, f"-max_total_time={seconds}", "-timeout=25", "-rss_limit_mb=3000", "-max_len=16384", "-verbosity=0",
            "-print_final_stats=1", f"-artifact_prefix={findings}/{reader}-", grown, corpus]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=600, help="for each of them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes that compile")
    parser.add_argument("readers", nargs="*", help="by default all")
    options = parser.parse_args()
    preset, programs = build(options.jobs)
    if unknown := set(options.readers) - programs.keys():
        parser.error(f"there is no fuzzer of {', '.join(sorted(unknown))}: there are {', '.join(programs)}")
    failed = []
    for reader in options.readers or programs:
        print(f"-- {reader}, {options.seconds} s", flush=True)
        run = subprocess.run(command(preset, reader, programs[reader], options.seconds), env={**os.environ, **OPTIONS})
        if run.returncode != 0:
            failed.append(reader)
    print(f"findings: {', '.join(failed)}: see build/{preset}/findings" if failed else "nothing found")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
