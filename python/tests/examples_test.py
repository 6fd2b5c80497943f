"""Each script of examples/python runs, on every device there is, and prints what it promises."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "python"
SKIPPED = 77
RANKS = {"ddp.py", "experts.py", "fsdp.py", "pipeline.py"}  # what torchrun starts
LINES = {
    "accelerate_step.py": [" of 60 steps replayed", "losses and weights are those of eager, bit for bit"],
    "ddp.py": ["steps replayed", "rank 0 of", "losses and weights are those of eager, bit for bit"],
    "diffusion.py": ["84 of 90 steps replayed", "losses, weights and images are those of eager, bit for bit"],
    "digits.py": ["pianola.graph ", "@pianola.graphed", "all weights and statistics are the same, bit for bit"],
    "experts.py": ["steps replayed", "rank 0 of", "losses and weights are those of eager, bit for bit"],
    "fp8_gpt.py": ["delayed: 12 of 12 losses equal eager's, bit for bit", "beside bfloat16's: "],
    "fsdp.py": ["steps replayed", "rank 0 of", "losses and weights are those of eager, bit for bit"],
    "graphed_callables.py": ["weights, gradients and evaluation are those of eager, bit for bit"],
    "lightning_trainer.py": [" of 60 steps replayed", "losses and weights are those of eager, bit for bit"],
    "pipeline.py": [" of 40 steps replayed", "losses and weights are those of eager, bit for bit"],
    "scopes.py": ["whole layers             2 of 4 are graphs", "moe_router               2 of 2", "losses and weights are those of eager, bit for bit"],
    "serving.py": ["evictions", "captured", "answers are those of eager, bit for bit"],
    "speech.py": [" of 6 texts are right", "losses, weights and texts are those of eager, bit for bit"],
    "taking_turns.py": ["given back while the other worked", "9 of 12 steps replayed", "12 of 12 rounds and the weights are those of eager, bit for bit"],
    "train_gpt.py": ["60 of 60 losses equal eager's, bit for bit", "Full iteration"],
    "train_mlp.py": ["loss 0.", "us per step"],
    "transformers_trainer.py": [" of 60 steps replayed", "losses and weights are those of eager, bit for bit"],
    "torch_cuda_graph.py": ["whole step", "mixed precision", "losses and weights are those of eager, bit for bit"],
}


def run(script, device, *arguments):
    visible = {} if device.type == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}
    count = min(2, torch.cuda.device_count()) if device.type == "cuda" else 2
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)] if script in RANKS else []
    return subprocess.run([sys.executable, *torchrun, str(FOLDER / script), *arguments], env={**os.environ, **visible}, capture_output=True,
                          text=True, timeout=300)  # fmt: skip


def test_every_script_is_here():
    assert {file.name for file in FOLDER.glob("*.py")} == LINES.keys()


@pytest.mark.parametrize("script", sorted(LINES))
def test_it_runs(script, device):
    if script == "pipeline.py" and device.type == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("wants two GPUs")
    ran = run(script, device)
    if ran.returncode == SKIPPED:
        pytest.skip(ran.stdout.strip())
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for line in [device.type, *LINES[script]]:
        assert line in ran.stdout, ran.stdout
    assert "NOT" not in ran.stdout and not re.search(r"\b0 of \d+ steps replayed", ran.stdout), ran.stdout
    assert "eager:" not in ran.stdout + ran.stderr, "something could not be captured: " + ran.stdout + ran.stderr


def test_the_profiled_program_trains_alike_with_and_without_a_graph(device):
    losses = [run("train_mlp.py", device, "--steps", "20", *graph).stdout.split(",")[0] for graph in ((), ("--graph",))]
    assert losses[0].startswith(f"{device.type}: loss ")
    assert losses[0] == losses[1]


def test_the_data_parallel_program_runs_on_all_ranks(device):
    program = Path(os.environ["PIANOLA_BUILD_DIR"]) / "examples" / "data_parallel"
    if not program.exists():
        pytest.skip("the build has no examples")
    count = min(2, torch.cuda.device_count()) if device.type == "cuda" else 2
    visible = {} if device.type == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}
    ran = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--no-python", "--standalone", "--nproc-per-node", str(count),
                          str(program)], env={**os.environ, **visible}, capture_output=True, text=True, timeout=300)  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for rank in range(count):
        assert re.search(rf"rank {rank} of {count} on {device.type}.*, 57 of 60 steps replayed", ran.stdout), ran.stdout
        assert f"rank {rank} of {count}: losses and weights are those of eager, bit for bit" in ran.stdout
