"""Whether `pianola.memory()` adds up: training steps of ten models, each in a process of its own that watches from the start. What the
driver says is in use, against the lines of the account; and what was told of the graph before against what it then took."""

import importlib.util
import json
import os
import subprocess
import sys

from measuring import case, require
from python_memory import MIB, from_timm, from_torchvision, from_transformers, written_out

DRIVER, TORCH, POOLS, EXECUTABLES, REST = (
    "in use, as the driver says", "torch's allocator, outside of pools", "pools of graphs", "executables of graphs", "not accounted for")
# Where the model is from, its name, and how many times the batch of bench/python/python_memory.py.
WORKLOADS = (
    ("torchvision", "resnet18", 1), ("torchvision", "resnet50", 2), ("torchvision", "efficientnet_b0", 4), ("torchvision", "vit_b_16", 4),
    ("timm", "convnext_tiny", 4), ("transformers", "GPT-2", 9), ("transformers", "Llama", 4), ("transformers", "T5", 2),
    ("transformers", "OPT", 1), ("torch", "U-Net", 8))
_SOURCES = {"torchvision": from_torchvision, "timm": from_timm, "transformers": from_transformers, "torch": written_out}
_QUICK = (0, len(WORKLOADS) - 1)  # of them


class Sizes:
    def __init__(self, quick):
        self.quick = quick

    def some(self, count):
        return min(count, 3) if self.quick else count


def trained_of(workload, quick):
    package, name, scale = workload
    return next(one for one in _SOURCES[package](Sizes(quick), scale) if name in one.title)


def account_of(which, settings):
    command = [sys.executable, os.path.join(os.path.dirname(__file__), "accounted_training.py"), "--device", settings.device, str(which)]
    done = subprocess.run(command + ["--quick"] * settings.quick, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise RuntimeError(f"{WORKLOADS[which]}: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def lines_of(told):
    """What is in use, line by line, in bytes."""
    process = told["process"]
    lines = {DRIVER: process.get("used_bytes", 0)}
    lines[TORCH] = sum(process.get(name, 0) for name in ("tensor_bytes", "returnable_bytes", "piece_bytes", "other_pool_bytes"))
    lines[POOLS] = sum(pool["bytes"] for pool in process["pools"])
    lines[EXECUTABLES] = process.get("executable_bytes", 0)
    for one in process.get("watched", ()):
        lines[one["what"]] = one["bytes"]
    lines[REST] = process.get("rest_bytes", 0)
    return lines


def judge(told, made):
    lines = lines_of(told)
    off = abs(lines[REST]) / lines[DRIVER]
    require(made, "not accounted for: at most 0.01 of what the driver says", off, 0.01, off <= 0.01)
    if told["nvidia_smi"]:
        apart = abs(lines[DRIVER] / told["nvidia_smi"] - 1)
        require(made, "the driver and nvidia-smi: within 0.01", apart, 0.01, apart <= 0.01)
    pool = told["graph"]["pool_bytes"]
    off = abs(told["told_pool"] / pool - 1)
    require(made, "told before: within 0.05 of the pool", off, 0.05, off <= 0.05)
    if lines[EXECUTABLES]:
        off = abs(told["told_executable"] / lines[EXECUTABLES] - 1)
        require(made, "told before: within 0.05 of the executable", off, 0.05, off <= 0.05)


def run(settings):
    for which, workload in enumerate(WORKLOADS):
        if settings.quick and which not in _QUICK:
            continue
        if importlib.util.find_spec(workload[0]) is None:
            settings.notes.append(f"{workload[0]} is not installed: its models are left out")
            continue
        told = account_of(which, settings)
        graph = told["graph"]
        notes = [f"{told['nodes']} nodes; pool: {graph['held_bytes'] / MIB:.0f} MiB held, {graph['scratch_bytes'] / MIB:.0f} scratch, "
                 f"{graph['fragment_bytes'] / MIB:.0f} fragments; executable on the host {graph['executable_host_bytes'] / MIB:.0f} MiB, "
                 f"told before {told['told_executable'] / MIB:.2f} MiB on the device"]
        made = case(told["title"], "bytes in use", 1, DRIVER if settings.device != "cpu" else POOLS,
                    {name: [bytes / MIB] for name, bytes in lines_of(told).items() if settings.device != "cpu" or name == POOLS}, unit="MiB", notes=notes)
        if settings.device != "cpu":
            judge(told, made)
        yield made
