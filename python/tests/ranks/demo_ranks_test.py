"""`torchrun -m pianola demo`: trains on two ranks, eagerly and with one graph on each, and says whether both are the same."""

import os
import re
import subprocess
import sys

import pytest
import torch

TEXT = "Permission is granted to copy, use and change this text, as long as this notice stays with it.\n" * 40
RANKS = 2


def start(*words, ranks=RANKS):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m", "pianola"]
    return subprocess.run([*torchrun, *map(str, words)], capture_output=True, text=True, timeout=300)


@pytest.fixture
def text(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path / "text.txt"


def test_each_rank_trains_with_the_bits_of_eager(device, text):
    if device.type == "cuda" and torch.cuda.device_count() < RANKS:
        pytest.skip(f"wants {RANKS} GPUs")
    ran = start("demo", "--device", device.type, "--text", text, "--steps", 30, "--seed", 2)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"device  {device.type}" in ran.stdout and "30 losses" in ran.stdout
    assert ran.stdout.count("The same training twice on 2 ranks") == 1
    rows = re.findall(r"^ +(\d) .* (\d+) of 30 +yes$", ran.stdout, re.MULTILINE)
    assert [rank for rank, _ in rows] == ["0", "1"] and all(int(replays) > 10 for _, replays in rows), ran.stdout
    assert "all ranks have the same weights" in ran.stdout


@pytest.mark.parametrize(
    "words, expected",
    [
        (["--steps", "0"], "--steps"),
        (["--colour"], "--colour"),
        (["--json", "out.json"], "--json is of the demo on one device"),
        (["--text", "nowhere.txt"], "cannot read the text 'nowhere.txt'"),
    ],
)
def test_a_wrong_command_line_is_one_sentence(words, expected):
    """Of what torchrun starts: as two processes, without torchrun's own report."""
    environment = {**os.environ, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    command = [sys.executable, "-m", "pianola", "demo", "--device", "cpu", *words]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2 and ran.stdout == "", ran.stdout + ran.stderr
    assert ran.stderr.startswith("pianola: ") and ran.stderr.count("\n") == 1 and expected in ran.stderr, ran.stderr


@pytest.mark.parametrize("module, name", [("losses", "tensors differ from eager's"), ("replays", "no step was replayed")])
def test_a_difference_is_a_failure_that_names_the_rank(module, name, text, tmp_path):
    """One rank's result is spoilt behind the demo's back."""
    (tmp_path / "spoilt.py").write_text(f"""
import os, sys
import torch
from pianola import _demo_ranks as demo

train = demo._Training.run
def spoilt(self, branches, show):
    run = train(self, branches, show)
    if branches is not None and os.environ["RANK"] == "1":
        run.{module} = {"[one + 1 for one in run.losses]" if module == "losses" else 0}
    return run
demo._Training.run = spoilt
demo.main(sys.argv[1:])
""")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, str(tmp_path / "spoilt.py"), "--device", "cpu", "--text", str(text), "--steps", "8"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode != 0 and re.search(f"rank 1: .*{name}", ran.stdout), ran.stdout + ran.stderr
    assert "rank 0: " not in ran.stdout and "bit-equal on all ranks" not in ran.stdout, ran.stdout
