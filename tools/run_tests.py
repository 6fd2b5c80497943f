"""Runs ctest and ends with a line `N passed, N failed, N skipped`; fails if a test failed or if none passed.

    run_tests.py PRESET [ctest argument ...]

A ctest test that leaves JUnit XML (GoogleTest, pytest) counts with its cases, any other counts as one.
"""

import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# OpenMP's threads spin while they wait for each other. Where programs share cores, each barrier then takes a slice of time, and a
# test of a second takes minutes.
ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE"} | os.environ


def outcome(case):
    """Of one <testcase>, of ctest, GoogleTest or pytest."""
    if case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail":
        return "failed"
    left_out = case.find("skipped") is not None or case.get("status") in ("notrun", "disabled")
    return "skipped" if left_out else "passed"


def count_cases(file):
    return Counter(outcome(case) for case in ElementTree.parse(file).iter("testcase"))


def count_test(test, results):
    """Counts of one ctest test. A process that died counts as a failure whatever its cases said before."""
    file = results / f"{test.get('name')}.xml"
    try:
        counts = count_cases(file) if file.exists() else Counter()
    except ElementTree.ParseError:
        counts = Counter()
    whole = outcome(test)
    if not counts or (whole == "failed" and not counts["failed"]):
        counts[whole] += 1
    return counts


def summarise(report, results):
    tests = list(ElementTree.parse(report).iter("testcase"))
    return sum((count_test(test, results) for test in tests), Counter())


def main(preset, *arguments):
    build = ROOT / "build" / preset
    results, report = build / "test-results", build / "ctest.xml"
    shutil.rmtree(results, ignore_errors=True)  # a result of an earlier run must not count
    report.unlink(missing_ok=True)
    results.mkdir(parents=True)
    # Two at a time; those that use a GPU take turns, and beside them runs what waits for programs and compilers.
    code = subprocess.run(
        ["ctest", "--preset", preset, "--parallel", "2", "--output-junit", str(report), *arguments], cwd=ROOT,
        env=ENVIRONMENT).returncode  # fmt: skip
    counts = summarise(report, results) if report.exists() else Counter()
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 0 if code == 0 and counts["failed"] == 0 and counts["passed"] > 0 else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
