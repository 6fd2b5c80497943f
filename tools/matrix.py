"""Builds and tests Pianola against several versions of torch.

    matrix.py [VERSION ...] [--tests all|core|rooms|none] [--compiler g++] [--jobs N] [--json FILE] [--keep]
    matrix.py --newest ...       the last of VERSIONS alone, and nothing where pip cannot get it: make test-newest

Without VERSION: all of VERSIONS. Each gets an environment of its own, build/matrix/VERSION/venv, which pip makes and which is removed
afterwards, since it takes 5 GB; and a build tree beside it, which stays. FILE gets a row for each, beside the rows of other versions and
compilers that it has: torch, CUDA, compiler, whether all compiles and links, warnings, the counts of the tests, the commit.
tools/torch_versions_doc.py makes a page of them.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from run_tests import ENVIRONMENT, ROOT, summarise

MATRIX = ROOT / "build" / "matrix"
VERSIONS = ("2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
ROOMS = "core|torch_abi|trace|graph|callable|parallel|distributed|training|verify|audit"
CHOSEN = {"all": ".", "core": f"^({ROOMS}|python)$", "rooms": f"^({ROOMS})$"}  # names of ctest's
LEFT_TO_TORCH = ("torch", "nvidia-")  # what requirements.txt pins for its own torch


def of_requirements():
    lines = (line.partition("#")[0].strip() for line in (ROOT / "requirements.txt").read_text().splitlines())
    return [line for line in lines if line and not line.startswith(LEFT_TO_TORCH)]


def cuda_headers(installed):
    """The header wheels that go with the CUDA that torch has brought: [requirement]; empty where it has none.

    installed: {package: version}
    """
    runtime = installed.get("nvidia-cuda-runtime")
    if runtime is None:
        return []
    minor = ".".join(runtime.split(".")[:2])
    return [f"{package}=={minor}.*" for package in ("nvidia-cuda-crt", "nvidia-cuda-cccl") if package not in installed]


class NotInstalled(Exception):
    """pip has failed."""


def make_environment(version, folder):
    """@return  Its interpreter."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
    if subprocess.run([*install, f"torch=={version}", *of_requirements()]).returncode != 0:
        raise NotInstalled(f"torch {version}")
    listed = subprocess.run([python, "-m", "pip", "list", "--format=json", "--disable-pip-version-check"], check=True, text=True,
                            stdout=subprocess.PIPE).stdout
    if headers := cuda_headers({one["name"]: one["version"] for one in json.loads(listed)}):
        subprocess.run([*install, *headers], check=True)
    return python


def ask(python, expression):
    return subprocess.run([python, "-c", f"import torch; print({expression})"], check=True, text=True, stdout=subprocess.PIPE).stdout.strip()


def version_of(compiler):
    """g++ tells the whole of its version for one flag only, which clang does not know."""
    for flag in ("-dumpfullversion", "-dumpversion"):
        ran = subprocess.run([compiler, flag], text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        if ran.returncode == 0:
            return ran.stdout.strip()
    raise SystemExit(f"{compiler} does not tell its version")


def first_failure(log):
    """What ninja's log says of the first step that failed, without its command."""
    lines = log[log.find("FAILED: "):].splitlines() if "FAILED: " in log else log.splitlines()[-30:]
    said = [line for line in lines[:60] if len(line) < 1000]
    ends = [i for i, line in enumerate(said) if i > 0 and re.match(r"\[\d+/\d+\]", line)]
    return "\n".join(said[: ends[0] if ends else None])


def build(tree, python, compiler, jobs):
    """(files that do not compile, whether all is linked, how many warnings)"""
    environment = os.environ | {"CXX": compiler}
    subprocess.run(["cmake", "--preset", "release", "-B", tree, f"-DPIANOLA_PYTHON={python}"], cwd=ROOT, env=environment, check=True,
                   stdout=subprocess.DEVNULL)
    log = tree / "build.log"
    with log.open("w") as out:
        status = subprocess.run(["cmake", "--build", tree, "--parallel", str(jobs), "--", "-k", "0"], cwd=ROOT, stdout=out,
                                stderr=subprocess.STDOUT).returncode
    text = log.read_text()
    if status != 0:
        print(first_failure(text), file=sys.stderr, flush=True)
    failed = re.findall(r"^FAILED: .*?([^ /]+)\.o\b", text, re.MULTILINE)
    return failed, status == 0, len(re.findall(r"\bwarning: ", text))


def test(tree, which):
    results, report = tree / "test-results", tree / "ctest.xml"
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir()
    subprocess.run(["ctest", "--test-dir", tree, "--parallel", "2", "--output-on-failure", "--output-junit", report,
                    "--tests-regex", CHOSEN[which], "--exclude-regex", "torch_versions_doc"], cwd=ROOT, env=ENVIRONMENT)  # fmt: skip
    return summarise(report, results) if report.exists() else Counter()


def commit():
    """Of the sources; with a + where they are changed."""
    named = subprocess.run(["git", "describe", "--always", "--exclude", "*", "--dirty=+"], cwd=ROOT, check=True, text=True,
                           stdout=subprocess.PIPE).stdout  # fmt: skip
    return named.strip()


def row_of(version, options):
    begin, place = time.monotonic(), MATRIX / version
    is_whole = not (place / f"build-{options.compiler}").exists()  # or only what has changed is compiled, and warns
    python = make_environment(version, place / "venv")
    tree = place / f"build-{options.compiler}"
    failed, links, warnings = build(tree, python, options.compiler, options.jobs)
    row = {"torch": ask(python, "torch.__version__"), "cuda": ask(python, "torch.version.cuda") or "none",
           "compiler": version_of(options.compiler), "kind": options.compiler, "commit": options.commit, "compiles": not failed,
           "does_not_compile": sorted(set(failed)), "links": links, "tests": options.tests}  # fmt: skip
    if is_whole:
        row["warnings"] = warnings
    if links and options.tests != "none":
        counts = test(tree, options.tests)
        row |= {kind: counts[kind] for kind in ("passed", "failed", "skipped")}
    row["seconds"] = round(time.monotonic() - begin)
    if not options.keep:
        shutil.rmtree(place / "venv")
    return row


def store(file, row):
    rows = json.loads(file.read_text()) if file.exists() else []
    same = ("torch", "compiler")
    rows = [one for one in rows if any(one[key] != row[key] for key in same)] + [row]
    file.write_text(json.dumps(sorted(rows, key=lambda one: [one[key] for key in same]), indent=1) + "\n")


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", metavar="VERSION", default=VERSIONS)
    parser.add_argument("--tests", choices=(*CHOSEN, "none"), default="all")
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", action="store_true", help="keep the environments")
    parser.add_argument("--newest", action="store_true", help="the last version alone; success where pip cannot get it")
    options = parser.parse_args(arguments)
    if options.newest:
        options.versions = VERSIONS[-1:]
    return options


def main(arguments):
    options, rows = parse(arguments), []
    options.commit = commit()  # before FILE changes
    for version in options.versions:
        try:
            row = row_of(version, options)
        except NotInstalled:
            if not options.newest:
                raise
            print(f"NOT TESTED: pip cannot install torch {version} here")
            return 0
        rows.append(row)
        print(json.dumps(row), flush=True)
        if options.json:
            store(options.json, row)
    return 0 if all(row["links"] and not row.get("failed") for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
