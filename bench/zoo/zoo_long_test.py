"""A part of the zoo, run on the tape: real models as people train them, each call compared with eager bit by bit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CALLS = 12
LEAST = 8  # of which are replayed: the others warm up, and one optimizer or another makes its state in a later call

SMALL = ("quickstart", "mobilenetv3", "gpt2", "bert_pretraining", "llama_lora", "t5_adafactor", "ddpm", "dcgan", "dqn", "burgers",
         "gat", "lstm_forecast", "nadam", "lion", "muon", "amp_recipe", "per_sample_gradients", "llama_static_cache")

for package in ("pianola", "torchvision", "timm", "transformers", "peft"):
    pytest.importorskip(package)


@pytest.mark.parametrize("name", SMALL)
def test_it_replays_without_an_edit_and_is_bit_equal(name, tmp_path):
    row = tmp_path / "row.json"
    command = [sys.executable, HERE / "run.py", "--case", name, "--device", "cpu", "--calls", str(CALLS), "--row", row]
    ran = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300,
                         env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert ran.returncode == 0, ran.stdout[-4000:]
    zoo = json.loads(row.read_text())["zoo"]
    assert zoo["differs"] == {"@pianola.graphed": ""}
    assert zoo["replayed"] >= LEAST, zoo["reasons"]
