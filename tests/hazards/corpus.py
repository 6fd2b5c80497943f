"""The corpus: programs/<group>/<name>.py, what is expected of each, and how an audit's report is judged.

A program's docstring says in a sentence what is wrong with it, or how it is right. program(device) builds what it needs and
returns the step to audit, or (step, keyword arguments of pianola.audit). cleanup(), where there is one, is called at the
end. CUDA_ONLY = True: what it shows exists on CUDA only. DEVICES = 2: it needs so many GPUs.

A line at fault ends with `# hazard:` and what has to be found there, separated by commas:

    PG301           a finding of this rule at this line
    PG401|PG802     of either rule: both say what is wrong
    PG501*          of this rule at this line, or at another one with the same mark: a difference between two runs has two
                    sides
    PG301?          may be found here, too: it follows from another hazard
    PG202@cuda      on this device only

In a comment on a line of its own the mark is no certain line's: the finding may be anywhere, also without a line. A program
without marks is clean: nothing at all may be found in it.
"""

import contextlib
import dataclasses
import importlib.util
import io
import itertools
import random
import re
import sys
import warnings
from pathlib import Path

import torch

import pianola

# What the audit does not find yet. A test fails when it does, so that the entry goes.
KNOWN_MISSES = {
    ("streams/worker_thread_wrong", "cuda"): "work that another thread launches in the step: told as a note, not a finding",
}

# "The device has work all the time" is a matter of times: beside other work on the device it is true of each program.
BUSY_DEVICE = "PG1204"

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROGRAMS = HERE / "programs"
MARK = re.compile(r"^(?P<code>.*?)#\s*hazard:\s*(?P<marks>.+?)\s*$")
ONE_MARK = re.compile(r"^(?P<rules>PG\d+(\|PG\d+)*)(?P<star>\*)?(@(?P<device>cpu|cuda))?(?P<optional>\?)?$")


def hazard_rules():
    """All rules of the library, by id."""
    return {rule.id: rule for rule in pianola._C.hazard_rules()}


@dataclasses.dataclass(frozen=True)
class Expectation:
    """One hazard. Several lines: at one of them. No lines: anywhere."""

    rules: tuple
    lines: tuple
    optional: bool

    def allows(self, rule, line):
        return rule in self.rules and (not self.lines or line in self.lines)

    def __str__(self):
        place = " or ".join(str(line) for line in self.lines)
        return "|".join(self.rules) + (f" at line {place}" if self.lines else "")


@dataclasses.dataclass
class Program:
    name: str
    path: Path

    @property
    def group(self):
        return self.name.split("/")[0]

    @property
    def source(self):
        return self.path.read_text()

    @property
    def doc(self):
        return re.match(r'"""(.*?)"""', self.source, re.DOTALL)[1].strip()

    @property
    def cuda_only(self):
        return "\nCUDA_ONLY = True\n" in self.source

    @property
    def devices(self):
        found = re.search(r"^DEVICES = (\d+)$", self.source, re.MULTILINE)
        return int(found[1]) if found else 1

    def why_not(self, device):
        """Why it cannot run there; None if it can."""
        if device == "cuda" and not torch.cuda.is_available():
            return "no GPU"
        if device == "cpu" and self.cuda_only:
            return "what it shows exists on CUDA only"
        if self.devices > 1 and torch.cuda.device_count() < self.devices:
            return f"needs {self.devices} GPUs"
        return None

    def expected(self, device):
        """What an audit on the device has to find."""
        found, shared = [], {}
        for number, line in enumerate(self.source.splitlines(), 1):
            mark = MARK.match(line)
            if not mark:
                continue
            for text in re.split(r",\s*", mark["marks"]):
                parts = ONE_MARK.match(text)
                if not parts:
                    raise ValueError(f"{self.path}:{number}: no mark: {text!r}")
                if parts["device"] not in (None, device):
                    continue
                rules, optional = tuple(parts["rules"].split("|")), bool(parts["optional"])
                lines = [number] if mark["code"].strip() else []
                if parts["star"]:
                    shared.setdefault((rules, optional), []).append(lines)
                else:
                    found.append(Expectation(rules, tuple(lines), optional))
        for (rules, optional), places in shared.items():
            anywhere = any(not lines for lines in places)
            found.append(Expectation(rules, () if anywhere else tuple(sum(places, [])), optional))
        return found

    @property
    def is_clean(self):
        return "# hazard:" not in self.source


def programs(names=()):
    """All, or those whose name begins with one of the names or contains it."""
    found = []
    for path in sorted(PROGRAMS.glob("*/*.py")):
        name = path.relative_to(PROGRAMS).with_suffix("").as_posix()
        if not names or any(wanted.removesuffix(".py") in name for wanted in names):
            found.append(Program(name, path))
    return found


_numbers = itertools.count()


@contextlib.contextmanager
def loaded(program, device):
    """(step, keyword arguments), of a module of its own, with random numbers as they always are; quietly."""
    import numpy

    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)
    name = f"hazard_program_{next(_numbers)}"
    spec = importlib.util.spec_from_file_location(name, program.path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            spec.loader.exec_module(module)
            try:
                made = module.program(torch.device(device, 0) if device == "cuda" else torch.device(device))
                yield made if isinstance(made, tuple) else (made, {})
            finally:
                getattr(module, "cleanup", lambda: None)()
    finally:
        del sys.modules[name]


def run_eagerly(program, device, runs=6):
    """Calls the step as an audit would. A program that is to fail has to fail."""
    fails = any("PG1202" in expectation.rules for expectation in program.expected(device))
    with loaded(program, device) as (step, options):
        batches, between = options.get("batches", [()]), options.get("between", lambda: None)
        counts_runs = bool(getattr(getattr(between, "__code__", None), "co_argcount", 0)) and not hasattr(between, "__self__")
        try:
            for number in range(runs):
                if number:
                    between(number) if counts_runs else between()
                batch = batches[number % len(batches)]
                step(**batch) if isinstance(batch, dict) else step(*batch)
        except Exception:
            if not fails:
                raise
        else:
            if fails:
                raise AssertionError(f"{program.name} does not fail")


@dataclasses.dataclass
class Verdict:
    """What an audit made of a program."""

    found: list = dataclasses.field(default_factory=list)  # (rule, expectation)
    missed: list = dataclasses.field(default_factory=list)  # expectation
    wrong_line: list = dataclasses.field(default_factory=list)  # (finding, expectation)
    false_alarms: list = dataclasses.field(default_factory=list)  # finding

    @property
    def ok(self):
        return not (self.missed or self.wrong_line or self.false_alarms)


def line_of(finding, program):
    """In the program; None elsewhere."""
    return finding.line if finding.file and Path(finding.file).name == program.path.name and finding.line else None


def judge(program, device, findings):
    """@param findings  Of the report."""
    expected, verdict = program.expected(device), Verdict()
    left = []
    matched = [False] * len(expected)
    for finding in findings:
        allowing = [n for n, e in enumerate(expected) if e.allows(finding.rule, line_of(finding, program))]
        for n in allowing:
            if not matched[n] and not expected[n].optional:
                verdict.found.append((finding.rule, expected[n]))
            matched[n] = True
        if not allowing:
            left.append(finding)
    for expectation, is_matched in zip(expected, matched):
        if is_matched or expectation.optional:
            continue
        elsewhere = next((finding for finding in left if finding.rule in expectation.rules), None)
        if elsewhere is not None:
            left.remove(elsewhere)
            verdict.wrong_line.append((elsewhere, expectation))
        else:
            verdict.missed.append(expectation)
    verdict.false_alarms = [finding for finding in left if finding.rule != BUSY_DEVICE]
    return verdict


def audited(program, device):
    """(the report of the audit, the verdict)"""
    import pianola

    with loaded(program, device) as (step, options):
        report = pianola.audit(step, device=device, **options)
    return report, judge(program, device, report.findings)


def in_words(finding, program):
    line = line_of(finding, program)
    place = f"line {line}" if line else f"{finding.file}:{finding.line}" if finding.file else "no line"
    evidence = f" [{finding.evidence}]" if finding.evidence else ""
    return f"{finding.rule} ({finding.kind}) at {place}: {finding.what}{evidence}"
