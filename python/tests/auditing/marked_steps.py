"""Steps whose source says what is wrong with them, and the comparison of an audit with that.

A line that is a hazard says so in a comment, "# PG801".
"""

import dataclasses
import inspect
import re

import pianola
from twins import batches


def marked(function):
    """{(rule, line)} of the comments in its source."""
    lines, first = inspect.getsourcelines(function)
    return {(rule, first + i) for i, line in enumerate(lines) for rule in re.findall(r"PG\d+", line.partition("# ")[2])}


def findings_of(report):
    """All but that the device has work all the time, which it has where other tests run beside this one."""
    return [finding for finding in report.findings if finding.rule != "PG1204"]


def found(report, file):
    """{(rule, line)}; of other files {(rule, file)}."""
    return {(finding.rule, finding.line if finding.file == file else finding.file) for finding in findings_of(report)}


def check(test, step, besides=(), exactly=True, **options):
    """Audits the step of a test; `besides` are rules of findings whose line is not compared. Not exactly: more may be
    found."""
    report = pianola.audit(step, **options)
    everything = found(report, inspect.getsourcefile(test))
    placed = {one for one in everything if one[0] not in besides}
    assert placed == marked(test) or (not exactly and placed > marked(test)), f"{report}"
    assert {rule for rule, _ in everything} >= set(besides) or not exactly, f"{report}"
    assert all(finding.what and finding.fix for finding in report.findings)
    return report


def inputs(device, count=4):
    return [(x,) for x in batches(count, (4, 16), device)]


@dataclasses.dataclass
class State:
    """What a training loop keeps beside tensors."""

    steps: int = 0
    scale: float = 1.0
    names: dict = dataclasses.field(default_factory=dict)
