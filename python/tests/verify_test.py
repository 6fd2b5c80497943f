"""pianola.verify: a graphed step against the eager one, tensor by tensor."""

import inspect
import json
import subprocess
import sys

import pianola
import pytest
import torch
from pianola import _commands
from pianola._verify import named_state
from twins import MLP, batches


def line_of(function, marker):
    """The line of the function's source that ends with the comment."""
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, text in enumerate(lines) if text.rstrip().endswith(f"# {marker}"))


class Training:
    """A model, an optimizer and a static batch; `step` trains on it."""

    def __init__(self, device, dropout=0.0):
        self.model = MLP(dropout=dropout).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.x, self.y = batches(2, (4, 16), device)

    def step(self):
        self.optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(self.model(self.x), self.y)
        loss.backward()
        self.optimizer.step()
        return loss


def test_a_captured_training_step_equals_eager(device):
    training = Training(device, dropout=0.2)
    training.step()  # makes the optimizer's state
    before = [p.detach().clone() for p in training.model.parameters()]
    report = pianola.verify(training.step, state=(training.model, training.optimizer))
    assert report.ok, report
    assert report.verdict == "equal" and report.steps == 5 and not report.missing_state
    assert "equal" in str(report) and report.exit_code == 0
    for was, now in zip(before, training.model.parameters()):
        assert torch.equal(was, now), "state is put back"


def test_a_frozen_learning_rate_is_found_with_its_line(device):
    weight = torch.zeros(4, device=device)
    rate = [0.5]

    def step():
        weight.sub_(rate[0] * torch.ones(4, device=device))  # frozen
        return weight * 2

    def between():
        rate[0] /= 2

    def reset():
        rate[0] = 0.5

    report = pianola.verify(step, state={"weight": weight}, between=between, reset=reset)
    assert report.verdict == "differs" and report.exit_code == 3, report
    first = report.differences[0]
    assert first.step == 2 and "weight" in [difference.name for difference in report.differences], report
    assert first.max_absolute > 0 and first.max_ulps > 0
    assert report.origin is not None and report.origin.line == line_of(step, "frozen"), report
    assert torch.equal(weight, torch.zeros(4, device=device))


def test_settings_of_optimizers_and_schedulers_are_put_back(device):
    training = Training(device)
    training.step()
    scheduler = torch.optim.lr_scheduler.StepLR(training.optimizer, step_size=1, gamma=0.5)
    report = pianola.verify(
        training.step, state=(training.model, training.optimizer, scheduler), between=lambda: scheduler.step()
    )
    assert report.verdict == "differs" and report.differences[0].step == 2, report
    assert training.optimizer.param_groups[0]["lr"] == 0.1 and scheduler.last_epoch == 0


def test_a_wrong_graph_of_somebody_else_is_found(device):
    weight = torch.ones(4, device=device)

    def step(x):
        weight.mul_(1.5)
        return weight * x

    def wrong(x):
        weight.mul_(1.5)
        return (weight * x).add_(1e-3)

    report = pianola.verify(step, wrong, {"weight": weight}, inputs=[torch.full((4,), 2.0, device=device)])
    assert report.verdict == "differs"
    assert [difference.role for difference in report.differences] == ["output"]
    assert report.differences[0].step == 1 and report.differences[0].differing == 4


def test_graphed_functions_and_several_shapes(device):
    model = MLP().to(device).eval()
    graphed = pianola.graphed(lambda x: model(x))
    inputs = [batches(1, (rows, 16), device)[0] for rows in (4, 1, 8)]
    for x in inputs * 4:
        graphed(x)
    with torch.no_grad():
        report = pianola.verify(lambda x: model(x), graphed, model, inputs=inputs, steps=6)
    assert report.ok, report


def test_state_that_nobody_listed_is_named(device):
    weight, hidden = torch.zeros(4, device=device), torch.zeros(4, device=device)

    def step():
        hidden.add_(1)  # not listed
        weight.add_(hidden)

    report = pianola.verify(step, state={"weight": weight})
    assert report.ok, report
    assert [missing.line for missing in report.missing_state] == [line_of(step, "not listed")]
    assert hidden.sum() == 0, "it is put back as well"


def test_a_model_that_does_not_repeat_itself_is_told_apart(device):
    import random

    x = torch.ones(4, device=device)
    numbers = random.Random(1)

    def step():
        return x * numbers.random()

    report = pianola.verify(step, step)
    assert report.verdict == "nondeterministic" and not report.ok, report
    assert report.eager_differences


def test_tolerances_are_per_dtype(device):
    x = torch.ones(4, device=device)
    report = pianola.verify(lambda: x * 2, lambda: x * 2 + 1e-6, tolerance={torch.float32: 1e-5})
    assert report.ok and report.within_tolerance, report
    report = pianola.verify(lambda: x * 2, lambda: x * 2 + 1e-6, tolerance={torch.float64: 1e-5})
    assert report.verdict == "differs"


def test_a_side_that_raises_is_a_report(device):
    x = torch.ones(4, device=device)

    def broken():
        raise ValueError("no such batch")

    report = pianola.verify(lambda: x * 2, broken)
    assert report.verdict == "failed" and "no such batch" in report.error and report.exit_code == 1


def test_inputs_that_differ_in_numbers_are_refused(device):
    x = torch.ones(4, device=device)
    with pytest.raises(pianola.UsageError, match="differ in more than their tensors"):
        pianola.verify(lambda x, scale: x * scale, inputs=[(x, 2.0), (x, 3.0)])


def test_unknown_state_is_refused():
    with pytest.raises(pianola.UsageError, match="state holds a object"):
        pianola.verify(lambda: None, state=object())


def test_state_is_named_as_its_owner_does():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 2)).sum().backward()
    optimizer.step()
    names = [name for name, _ in named_state({"model": model, "optimizer": optimizer})]
    assert "model.0.weight" in names and "model.1.running_mean" in names
    assert "optimizer.group 0.parameter 0.exp_avg" in names
    assert len(names) == len(set(names))


def test_strict_replays_name_what_was_replaced(device):
    cache = torch.ones(4, device=device)
    result = torch.zeros(4, device=device)

    def step():
        result.copy_(cache * 2)

    graph = pianola.Graph(device)
    graph.capture(step, check="strict", names={"cache": cache})
    graph.replay()
    cache = torch.cat([cache, cache])[:4].clone()
    with pytest.raises(pianola.ReplayError, match="'cache'") as refused:
        graph.replay()
    assert refused.value.rule == "PG404"


SCRIPT = """
import torch

weight = torch.zeros(4)
state = {"weight": weight}
rate = [1.0]


def step():
    weight.sub_(torch.ones(4))
    return weight * 2


def make_frozen():
    def frozen():
        weight.sub_(torch.ones(4) * rate[0])

    return frozen, {"between": lambda: rate.append(rate.pop() / 2), "reset": lambda: rate.__setitem__(0, 1.0)}


def broken():
    raise ValueError("no such batch")
"""


def command(folder, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "pianola", "verify", *arguments], cwd=folder, capture_output=True, text=True, timeout=120
    )


def test_the_command_verifies_a_function_of_a_script(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    equal = command(tmp_path, "train.py:step", "--steps", "3", "--json", "report.json")
    assert equal.returncode == 0 and "equal" in equal.stdout, equal.stdout + equal.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["verdict"], report["steps"]) == ("equal", 3)
    frozen = command(tmp_path, "train.py:make_frozen", "--json", "-")
    assert frozen.returncode == 3 and json.loads(frozen.stdout)["verdict"] == "differs", frozen.stdout + frozen.stderr
    assert command(tmp_path, "train.py:broken").returncode == 1
    missing = command(tmp_path, "train.py:nothing")
    assert missing.returncode == 2 and "has no 'nothing'" in missing.stderr


@pytest.mark.parametrize("name", ["audit", "verify", "profile", "decide"])
def test_the_commands_refuse_what_they_cannot_use(name, tmp_path, monkeypatch, capsys):
    def run(arguments):
        return _commands.run([name, *arguments])

    monkeypatch.setattr(sys, "path", list(sys.path))
    ends = tmp_path / "ends_itself.py"
    ends.write_text("import sys\nsys.exit(3)\n")
    assert run([f"{ends}:step"]) == 1, "3 would mean hazards or differences"
    assert "pianola: the script ends itself, by sys.exit(3)" in capsys.readouterr().err
    script = tmp_path / "good.py"
    script.write_text("def step():\n    raise AssertionError('the work was begun')\n")
    report = tmp_path / "none" / "report.json"
    assert run([f"{script}:step", "--json", str(report)]) == 2
    error = capsys.readouterr().err
    assert f"pianola: cannot write '{report}': No such file or directory" in error
    assert "the work was begun" not in error
    damaged = tmp_path / "damaged.py"
    damaged.write_bytes(b"def step():\n\x00\xff\xfe")
    assert run([f"{damaged}:step"]) == 1
    assert "pianola: the script fails" in capsys.readouterr().err
    assert run([f"{tmp_path}:step"]) == 2
    assert "there is no file" in capsys.readouterr().err
