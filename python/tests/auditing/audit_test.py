"""Arguments and results of pianola.audit(), and the command."""

import gc
import json
import subprocess
import sys
import weakref

import pytest
import torch

import pianola
from pianola import _C
from marked_steps import findings_of, inputs


def test_bad_arguments():
    with pytest.raises(pianola.UsageError, match="iterations must be 2 or more, got 1"):
        pianola.audit(lambda: None, iterations=1)
    with pytest.raises(pianola.UsageError, match="a int cannot be audited"):
        pianola.audit(3)
    with pytest.raises(pianola.UsageError, match="batches is empty"):
        pianola.audit(lambda x: x, batches=[])
    with pytest.raises(pianola.UsageError, match="batches must be a list"):
        pianola.audit(lambda x: x, batches=torch.ones(3))


def test_between_counts_the_runs_where_it_wants_to(device):
    seen, calls = [], []

    def step(x):
        calls.append(1)
        return x * 2

    pianola.audit(step, batches=inputs(device), between=lambda runs: seen.append((runs, len(calls))), trial=False)
    assert seen[:3] == [(1, 1), (2, 2), (3, 3)]


def test_nothing_to_record():
    report = pianola.audit(lambda: None, trial=False)
    assert [one.rule for one in findings_of(report)] == ["PG1201"]


def test_the_report(device):
    count = 0

    def step(x):
        nonlocal count
        count += 1
        return x * 2

    report = pianola.audit(step, batches=inputs(device))
    (finding,) = findings_of(report)
    assert (finding.rule, finding.kind, finding.severity) == ("PG803", "host-counter", "wrong numbers")
    assert (finding.function, finding.file) == ("step", __file__) and finding.fix and finding.iteration == 1
    assert report.subject == "step" and report.iterations == 3 and report.operations == 1 and report.device == str(device)
    assert not report.ok and report.exit_code == 3 and report.worst == "wrong numbers"
    assert str(report) == report.to_text() and "PG803" in report.to_text()
    assert json.loads(report.to_json())["findings"][0]["place"]["line"] == finding.line
    assert json.loads(report.to_sarif())["version"] == "2.1.0"


def test_rules():
    rules = _C.hazard_rules()
    assert len({rule.id for rule in rules}) == len({rule.kind for rule in rules}) == len(rules)
    assert all(rule.title and rule.why and rule.fix and rule.severity for rule in rules)
    with pytest.raises(pianola.UsageError):
        _C.Finding("PG999")


def test_report_of_python_s_making():
    finding = _C.Finding("PG801", place=("step", "a.py", 3), what="so it is", times=2)
    assert (finding.function, finding.file, finding.line, finding.times) == ("step", "a.py", 3, 2)
    assert finding.severity == "wrong numbers" and _C.Finding("PG801", severity="style").severity == "style"


SCRIPT = """
import torch
model = torch.nn.Linear(4, 4)
seen = []
batches = [(torch.randn(2, 4),) for _ in range(3)]

def step(x):
    seen.append(1)
    return model(x)

def clean(x):
    return model(x)

def make_clean():
    print("making")
    return clean, {"batches": [torch.ones(1, 4)] * 2}

def make_nothing():
    raise ValueError("nothing")

if __name__ == "__main__":
    raise SystemExit("this part must not run")
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("script") / "script.py"
    path.write_text(SCRIPT)
    return path


def command(*arguments):
    return subprocess.run([sys.executable, "-m", "pianola", *arguments], capture_output=True, text=True)


def test_the_command_tells_hazards(script, tmp_path):
    ran = command("audit", f"{script}:step", "--sarif", str(tmp_path / "out.sarif"), "--json", str(tmp_path / "out.json"))
    assert ran.returncode == 3 and "PG801" in ran.stdout and "script.py:8" in ran.stdout, ran.stderr
    assert json.loads((tmp_path / "out.json").read_text())["findings"][0]["rule"] == "PG801"
    assert json.loads((tmp_path / "out.sarif").read_text())["version"] == "2.1.0"


def test_the_command_of_a_clean_step(script):
    ran = command("audit", f"{script}:make_clean", "--json", "-", "--no-trial", "--iterations", "2", "--device", "cpu")
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert report["findings"] == [] and report["iterations"] == 2 and "making" in ran.stderr


@pytest.mark.parametrize("name", ["audit", "verify", "profile", "decide"])
@pytest.mark.parametrize("arguments", [("--help",), ("script.py:step", "-h")])
def test_the_commands_explain_themselves(name, arguments):
    ran = command(name, *arguments)
    assert ran.returncode == 0 and f"Usage: pianola {name}" in ran.stdout, ran.stderr
    assert "FILE.py:FUNCTION" in ran.stdout and "MODULE:FUNCTION" in ran.stdout and "Exit codes:" in ran.stdout
    assert ("Options of TorchScript files" in ran.stdout) == (name in ("audit", "verify"))


def test_a_function_of_a_module(script):
    found = subprocess.run([sys.executable, "-m", "pianola", "audit", "--no-trial", "script:step"],
                           capture_output=True, text=True, cwd=script.parent)  # fmt: skip
    assert found.returncode == 3 and "PG801" in found.stdout, found.stderr
    missing = command("audit", "no_such_package.train:step")
    assert missing.returncode == 2 and "there is no module 'no_such_package'" in missing.stderr
    assert "fix:   name a file, script.py:function" in missing.stderr


@pytest.mark.parametrize(
    "arguments, code, text",
    [
        (["{}:make_nothing"], 1, "ValueError: nothing"),
        (["{}:nowhere"], 2, "has no 'nowhere'"),
        (["{}"], 2, "names no function"),
        (["{}:clean", "--iterations", "1"], 2, "iterations must be 2 or more"),
        (["{}:clean", "--nonsense"], 2, "unrecognized arguments: --nonsense\nTry 'pianola audit --help'"),
        (["{}:clean", "--json", "-", "--sarif", "-"], 2, "only one of --json and --sarif can go to the standard output"),
        (["missing.py:step"], 2, "there is no file"),
    ],
)
def test_how_the_command_fails(script, arguments, code, text):
    ran = command("audit", *(one.format(script) for one in arguments))
    assert ran.returncode == code and text in ran.stderr, ran.stderr


def test_an_audit_keeps_nothing_alive(device):
    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(16, 16)
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return self.inner(x)

    model = Own().to(device)
    gone = [weakref.ref(model), weakref.ref(model.inner.weight), weakref.ref(Own)]
    report = pianola.audit(lambda x: model(x), batches=inputs(device))
    del model, Own
    gc.collect()
    assert report.findings and [one() for one in gone] == [None] * 3
