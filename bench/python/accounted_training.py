"""A training step in a graph, in a process of its own that watches its memory from the start: prints what `pianola.memory()` says of the
device, and NVIDIA's own tools beside it, as JSON. bench/python/python_account.py runs it."""

import argparse
import json
import shutil
import subprocess

import pianola
import torch
from python_account import WORKLOADS, trained_of
from python_memory import step_of


def used_by_nvidia_smi():
    """Bytes of the first visible device, of all processes; None where there is no such program. It numbers devices by itself."""
    if shutil.which("nvidia-smi") is None:
        return None
    told = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits",
                           f"--id=GPU-{torch.cuda.get_device_properties(0).uuid}"], capture_output=True, text=True)
    return int(told.stdout) << 20 if told.returncode == 0 and told.stdout.strip().isdigit() else None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("which", type=int)
    arguments = parser.parse_args()
    with pianola.watch_memory(arguments.device):
        trained = trained_of(WORKLOADS[arguments.which], arguments.quick)
        optimizer = torch.optim.AdamW if arguments.device != "cpu" else torch.optim.SGD
        step = step_of(trained, arguments.device, of=optimizer)
        forecast = pianola.predict_memory(step, device=arguments.device)
        graph = pianola.Graph(arguments.device)
        graph.capture(step, warmup=2, accept_capture_path=True)  # transformers asks whether it is captured
        for _ in range(2):
            graph.replay()
        if arguments.device != "cpu":
            torch.cuda.synchronize()
    process = pianola.memory(arguments.device)
    print(json.dumps({"title": trained.title, "process": json.loads(process.to_json()), "graph": json.loads(graph.memory().to_json()), "nodes": graph.info().nodes,
                      "told_pool": forecast.pool_bytes, "told_executable": forecast.executable_bytes,
                      "nvidia_smi": used_by_nvidia_smi() if arguments.device != "cpu" else None}))


if __name__ == "__main__":
    main()
