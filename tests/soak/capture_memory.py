"""How much host and device memory a capture leaves behind, by kind of capture; each is made, used and dropped many times.

    PYTHONPATH=build/release/python python tests/soak/capture_memory.py --device cuda --captures 300

Kinds: right, failed (a host read, and an exception of the step's own), callable (made, called forward and backward), scope
(`with pianola.graph`), graphed (a function with new shapes, beyond its capacity), one thread for each capture, a pool that the
user names, and torch's own torch.cuda.graph. `--only kind` runs one.
"""

import argparse
import json
import threading

import memory
import torch

import pianola


class Made:
    """One layer of 64 x 64, and what is done with it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.layer = torch.nn.Linear(64, 64).to(device)
        self.x = torch.ones(64, 64, device=device)
        self.y = self.x
        self.calls = 0

    def step(self) -> None:
        self.y = torch.relu(self.layer(self.x))

    def right(self) -> None:
        graph = pianola.Graph(self.device)
        graph.capture(self.step, warmup=1)
        graph.replay()

    def failed(self) -> None:
        def reads() -> None:
            self.step()
            self.y.sum().item()

        def raises() -> None:
            self.step()
            raise ValueError("mine")

        self.calls += 1
        try:
            pianola.Graph(self.device).capture(reads if self.calls % 2 else raises, warmup=0)
        except (pianola.CaptureError, ValueError):
            return
        raise AssertionError("nothing was raised")

    def scope(self) -> None:
        graph = pianola.CUDAGraph()
        with pianola.graph(graph, device=self.device):
            self.step()
        graph.replay()

    def callable(self) -> None:
        layer = torch.nn.Linear(64, 64).to(self.device)
        graphed = pianola.make_graphed_callables(layer, (self.x,))
        graphed(self.x).sum().backward()

    def graphed(self) -> None:
        if self.calls % 50 == 0:
            self.function = pianola.graphed(lambda x: torch.relu(x) * 2, warmup=1, capacity=2)
        self.calls += 1
        x = torch.ones(1 + self.calls % 50, device=self.device)
        for _ in range(3):
            self.function(x)

    def thread(self) -> None:
        thread = threading.Thread(target=self.callable)
        thread.start()
        thread.join()

    def named(self) -> None:
        graph = pianola.Graph(self.device)
        graph.capture(self.step, warmup=1, pool=pianola.graph_pool_handle())
        graph.replay()

    def torchs(self) -> None:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        graph.replay()

    def torch_callable(self) -> None:
        layer = torch.nn.Linear(64, 64).to(self.device)
        torch.cuda.make_graphed_callables(layer, (self.x,))(self.x).sum().backward()


KINDS = ["right", "failed", "scope", "callable", "graphed", "thread", "named"]
OF_TORCH = ["torchs", "torch_callable"]


def measure(kind: str, device: torch.device, captures: int) -> "dict[str, float]":
    """KiB a capture, and where the device's memory stands; in ten parts, after as many captures that fill all tables."""
    made = Made(device)
    part = max(captures // 10, 1)
    for _ in range(2 * part):
        getattr(made, kind)()
    reserved = memory.reserved_bytes(device)
    host, resident = [], []
    for done in range(11):
        host.append((done * part, memory.host_bytes()))
        resident.append((done * part, memory.resident_bytes()))
        for _ in range(part if done < 10 else 0):
            getattr(made, kind)()
    return {
        "host_kib": memory.slope(host) / 1024,
        "resident_kib": memory.slope(resident) / 1024,
        "reserved_mib": memory.reserved_bytes(device) / 2**20,
        "reserved_growth_mib": (memory.reserved_bytes(device) - reserved) / 2**20,
        "streams": memory.streams_with_memory(device),
    }


def main() -> None:
    memory.let_malloc_count()
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--captures", type=int, default=300)
    parser.add_argument("--only", choices=KINDS + OF_TORCH, action="append")
    parser.add_argument("--json")
    options = parser.parse_args()
    device = torch.device(options.device)
    kinds = options.only or KINDS + (OF_TORCH if device.type == "cuda" else [])
    results = {}
    print(f"{'kind':16}{'host KiB':>10}{'resident KiB':>14}{'reserved MiB':>14}{'growth MiB':>12}{'streams':>9}   a capture")
    for kind in kinds:
        found = results[kind] = measure(kind, device, options.captures)
        print(
            f"{kind:16}{found['host_kib']:10.2f}{found['resident_kib']:14.2f}{found['reserved_mib']:14.1f}"
            f"{found['reserved_growth_mib']:12.1f}{found['streams']:9}",
            flush=True,
        )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
