"""What Pianola builds on inside torch is tried, and what has moved is named."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pianola
import pytest
import torch
from pianola._internals import main, of_python
from torch.optim.optimizer import register_optimizer_step_pre_hook

PROGRAM = Path(os.environ.get("PIANOLA_BUILD_DIR", ""), "apps", "pianola")


def test_this_torch_is_as_pianola_needs_it(device):
    internals = pianola.check_internals(device)
    assert {one.name for one in internals} >= {"operations", "random numbers of graphs", "steps of optimizers"}
    assert [one for one in internals if one.trouble] == []
    assert all(one.used_for for one in internals)


def test_another_count_of_owners_is_named(monkeypatch):
    monkeypatch.setattr(torch._C, "_storage_Use_Count", lambda data: 1)
    (moved,) = [one for one in of_python() if one.trouble]
    assert moved[:3] == ("owners of a storage", "telling a result that nobody holds any more", "a view counted 0 times")


def test_what_is_gone_is_named(monkeypatch):
    monkeypatch.delattr(torch._C, "_current_graph_task_id")
    monkeypatch.delattr(torch.nn.modules.module, "_global_forward_hooks")
    troubles = {one.name: one.trouble for one in of_python() if one.trouble}
    assert troubles["hooks of modules"].endswith("_global_forward_hooks are gone")
    assert troubles["numbers of backward passes"].startswith("it failed: AttributeError: ")


def test_a_function_of_autograd_that_is_called_otherwise_is_named(monkeypatch):
    monkeypatch.setattr(torch.autograd.Function, "apply", classmethod(lambda cls, *args: None))
    troubles = {one.name: one.trouble for one in of_python() if one.trouble}
    assert troubles == {"custom autograd functions": "Function.apply is a method that is not known"}


@pytest.mark.skipif(not PROGRAM.exists(), reason="the program is not built")
@pytest.mark.parametrize("moves", [False, True])
def test_the_report_of_the_program_has_the_rows_of_the_package(monkeypatch, capfd, moves):
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    if moves:
        monkeypatch.setattr(torch._C, "_storage_Use_Count", lambda data: 1)
    assert main(PROGRAM, environment, ["info", "--check"]) == int(moves)
    text = capfd.readouterr().out
    assert "What Pianola builds on inside torch" in text and "in Python" in text
    assert ("moved: a view counted 0 times" in text) == moves
    assert main(PROGRAM, environment, ["info", "--check", "--json"]) == int(moves)
    rows = json.loads(capfd.readouterr().out)["internals"]
    assert {row["device"] for row in rows} == {"cpu", "python"}
    assert {row["state"] for row in rows} == {"as needed"} | ({"moved: a view counted 0 times"} if moves else set())


def test_what_the_caller_has_open_is_not_touched(device):
    """Modes, transforms, a backward pass, and hooks of all optimizers."""
    seen = []
    handle = register_optimizer_step_pre_hook(lambda *of_step: seen.append(of_step))
    inside = []
    x = torch.ones(3, device=device, requires_grad=True)
    y = x * 2
    y.register_hook(lambda gradient: inside.extend(of_python()))
    y.sum().backward()
    torch.func.vmap(lambda row: inside.extend(of_python()) or row)(torch.ones(2, 2))
    handle.remove()
    assert not seen and len(inside) > 8 and not [one for one in inside if one.trouble]


def test_what_fails_and_passes_is_no_verdict(tmp_path):
    """As where the first capture finds the memory full."""
    program = """
import torch, pianola
full = [True]
def mul(a, b):
    if full[0]:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB")
    return a.clone().mul_(b)
library = torch.library.Library("aten", "IMPL")
library.impl("mul.Tensor", mul, "CPU")
x = torch.ones(3)
for full[0] in (True, False):
    graph = pianola.Graph("cpu")
    graph.capture(lambda: x + 1)
    graph.replay()
    print("captured", flush=True)
"""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120)
    assert ran.stdout.split() == ["captured"] * 2, ran.stderr
    assert not list(tmp_path.rglob("internals-*"))
