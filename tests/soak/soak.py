"""A soak: threads that capture, fail to capture, replay, evict, train, save and load at once, always beside an eager twin.

    PYTHONPATH=build/release/python python tests/soak/soak.py --device cuda --minutes 8

Each thread has models, graphs and generators of its own, and runs one scenario after the other in an order that `--seed`
decides; every result is compared with that of the eager twin by bits. One more thread draws dropout masks from the default
generator, none of which may appear twice. Now and then all stop, and memory is measured.

Ends with the counts, and with exit code 1 where anything was wrong, raised what it should not, or grew.
"""

import argparse
import array
import contextlib
import copy
import hashlib
import json
import logging
import os
import random
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from typing import Any, Callable, Iterator

import memory
import torch

import pianola

WIDTH = 32
HOST_LIMIT_KIB = 1.0  # a capture
DEVICE_LIMIT_MIB = 34.0  # a cuBLAS workspace, and a block beside it; memory.growth() of the measurements after the warm-up


class Wrong(AssertionError):
    """A result that differs from eager's."""


class Tally:
    """What happened, of all threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.scenarios: Counter[str] = Counter()
        self.first: list[str] = []  # texts of what went wrong, a few of them

    def add(self, what: str, number: int = 1) -> None:
        with self.lock:
            self.counts[what] += number

    def note(self, what: str, text: str) -> None:
        with self.lock:
            self.counts[what] += 1
            if len(self.first) < 10:
                self.first.append(text)


def describe_difference(one: Any, other: Any) -> str:
    if one is None or other is None or one.dtype != other.dtype or one.shape != other.shape:
        return " instead of ".join(str(x if x is None else (x.dtype, tuple(x.shape))) for x in (one, other))
    differing = one != other
    return f"{int(differing.sum())} of {one.numel()} elements differ, by up to {(one.double() - other.double()).abs().max().item()}"


class Net(torch.nn.Module):
    """Two layers; dropout from a generator of its own, so that twins can draw the same."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.first = torch.nn.Linear(WIDTH, WIDTH)
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.second = torch.nn.Linear(WIDTH, WIDTH)
        self.generator = generator

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.gelu(self.norm(self.first(x)))
        mask = torch.empty_like(x).bernoulli_(0.75, generator=self.generator)
        return self.second(x * mask)

    def __deepcopy__(self, memo: Any) -> "Net":
        twin = Net(torch.Generator(self.generator.device))
        twin.generator.set_state(self.generator.get_state())
        twin.to(self.first.weight.device, self.first.weight.dtype)
        twin.load_state_dict(self.state_dict())
        return twin


class Worker:
    """One thread's part. Each scenario is a method; it counts calls and checks."""

    def __init__(self, device: torch.device, seed: int, tally: Tally, folder: str, only: "list[str] | None") -> None:
        self.device, self.tally, self.folder = device, tally, folder
        self.random = random.Random(seed)
        self.numbers = torch.Generator().manual_seed(seed)
        data = torch.utils.data.TensorDataset(torch.randn(40, WIDTH, generator=self.numbers))
        self.batches = torch.utils.data.DataLoader(
            data, 8, shuffle=True, num_workers=2, persistent_workers=True, generator=torch.Generator().manual_seed(seed)
        )
        next(iter(self.batches))  # forks here, before there are threads
        self.training = Training(self)
        self.function = Evicting(self)
        self.scenarios: list[Callable[[], None]] = [
            self.graph,
            self.scope,
            self.callables,
            self.reads_on_the_host,
            self.raises,
            self.function.calls,
            self.training.steps,
            self.training.checkpoint,
            self.loader,
        ]
        if only:
            self.scenarios = [scenario for scenario in self.scenarios if scenario.__name__ in only]

    def run_one(self) -> None:
        scenario = self.random.choice(self.scenarios)
        with self.tally.lock:
            self.tally.scenarios[scenario.__name__] += 1
        scenario()

    # helpers

    def batch(self, rows: int = 8) -> torch.Tensor:
        return torch.randn(rows, WIDTH, generator=self.numbers).to(self.device)

    def twins(self) -> "tuple[Net, Net]":
        generator = torch.Generator(self.device).manual_seed(self.random.randrange(2**31))
        net = Net(generator)
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=self.numbers) * 0.2)
        net.to(self.device)
        return net, copy.deepcopy(net)

    def same(self, where: str, actual: Any, expected: Any) -> None:
        pairs = zip(actual, expected, strict=True) if isinstance(actual, (list, tuple)) else [(actual, expected)]
        for one, other in pairs:
            self.tally.add("checks")
            if one is None or other is None:
                equal = one is other
            else:
                equal = one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
            if not equal:
                raise Wrong(f"{where}: {describe_difference(one, other)}")

    def same_nets(self, where: str, one: Net, other: Net) -> None:
        self.same(f"{where}: parameters", list(one.parameters()), list(other.parameters()))
        self.same(f"{where}: gradients", [p.grad for p in one.parameters()], [p.grad for p in other.parameters()])
        self.same(f"{where}: generator", one.generator.get_state(), other.generator.get_state())

    # scenarios

    def graph(self) -> None:
        """pianola.Graph around a whole training step with AdamW."""
        net, twin = self.twins()
        optimizers = [pianola.optim.AdamW(n.parameters(), lr=1e-2) for n in (net, twin)]
        x = self.batch()
        losses: list[Any] = [None, None]

        def step(of: int) -> None:
            optimizers[of].zero_grad()
            losses[of] = (net, twin)[of](x).square().mean()
            losses[of].backward()
            optimizers[of].step()

        graph = pianola.Graph(self.device)
        graph.capture(lambda: step(0), warmup=self.random.randint(1, 2), generators=[net.generator])
        self.tally.add("captures")
        for _ in range(self.random.randint(1, 4)):
            x.copy_(self.batch())
            graph.replay()
            step(1)
            self.tally.add("calls")
            self.same("graph: loss", losses[0], losses[1])
            self.same_nets("graph", net, twin)

    def scope(self) -> None:
        """`with pianola.graph`, two graphs in a pool, the second one reads the first one's result."""
        net, twin = self.twins()
        x = self.batch()
        graphs = [pianola.CUDAGraph(), pianola.CUDAGraph()]
        with torch.no_grad():
            graphs[0].register_generator_state(net.generator)
            net(x), twin(x)  # libraries load
            with pianola.graph(graphs[0], device=self.device):
                hidden = net(x)
            with pianola.graph(graphs[1], pool=graphs[0].pool(), device=self.device):
                result = torch.relu(hidden) * 2
            self.tally.add("captures", 2)
            for _ in range(3):
                x.copy_(self.batch())
                for graph in graphs:
                    graph.replay()
                self.tally.add("calls")
                self.same("scope", result, torch.relu(twin(x)) * 2)
        self.same("scope: generator", net.generator.get_state(), twin.generator.get_state())

    def callables(self) -> None:
        """make_graphed_callables, forward and backward, with gradients of the input."""
        net, twin = self.twins()
        x = self.batch().requires_grad_()
        graphed = pianola.make_graphed_callables(net, (x,), generators=[net.generator])
        self.tally.add("captures", 2)
        for _ in range(3):
            inputs = [self.batch().requires_grad_()]
            inputs.append(inputs[0].detach().clone().requires_grad_())
            outputs = [graphed(inputs[0]), twin(inputs[1])]
            for output in outputs:
                output.square().sum().backward()
            self.tally.add("calls")
            self.same("callables: output", outputs[0], outputs[1])
            self.same("callables: input's gradient", inputs[0].grad, inputs[1].grad)
            self.same_nets("callables", net, twin)

    def fails(self, offence: Callable[[torch.Tensor], Any], error: Any) -> None:
        net, twin = self.twins()
        x = self.batch()

        def step() -> None:
            y = net(x)
            y.sum().backward()
            offence(y)

        for warmup in (0, 1):
            try:
                pianola.Graph(self.device).capture(step, warmup=warmup, generators=[net.generator])
            except error:
                self.tally.add("failed captures")
            else:
                raise Wrong("a capture that must fail did not")
        self.same_nets("after a failed capture", net, twin)
        self.same("eager after a failed capture", net(x), twin(x))

    def reads_on_the_host(self) -> None:
        self.fails(lambda y: y.sum().item(), pianola.CaptureError)

    def raises(self) -> None:
        def offence(_: torch.Tensor) -> None:
            raise KeyError("mine")

        self.fails(offence, KeyError)

    def loader(self) -> None:
        """A replay for each batch that the loader's processes bring."""
        net, twin = self.twins()
        x = self.batch()
        with torch.no_grad():
            graph, results = pianola.Graph(self.device), []
            graph.capture(lambda: results.append(net(x)), warmup=1, generators=[net.generator])
            self.tally.add("captures")
            for (batch,) in self.batches:
                x.copy_(batch.to(self.device))
                graph.replay()
                self.tally.add("calls")
                self.same("loader", results[-1], twin(batch.to(self.device)))
        self.same("loader: generator", net.generator.get_state(), twin.generator.get_state())


class Evicting:
    """A graphed function with more signatures than it keeps graphs of."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.net, self.twin = worker.twins()
        self.sgd = [torch.optim.SGD(n.parameters(), lr=0.01, momentum=0.9) for n in (self.net, self.twin)]
        self.graphed = pianola.graphed(
            lambda x, scale: self.step(0, x, scale), warmup=2, capacity=3, generators=[self.net.generator]
        )
        self.captured = 0

    def step(self, of: int, x: torch.Tensor, scale: float) -> torch.Tensor:
        net = (self.net, self.twin)[of]
        self.sgd[of].zero_grad()
        loss = (net(x) * scale).square().mean()
        loss.backward()
        self.sgd[of].step()
        return loss.detach()

    def calls(self) -> None:
        worker = self.worker
        rows, scale = worker.random.choice([2, 3, 4, 5, 6]), worker.random.choice([1.0, 0.5])
        for _ in range(worker.random.randint(2, 6)):
            x = worker.batch(rows)
            results = [self.graphed(x, scale), self.step(1, x, scale)]
            worker.tally.add("calls")
            worker.same("graphed: loss", results[0], results[1])
            worker.same_nets("graphed", self.net, self.twin)
        info = self.graphed.info()
        captured = info.evictions + sum(signature.state == "captured" for signature in info.signatures)
        worker.tally.add("captures", max(captured - self.captured, 0))
        self.captured = captured


class Training:
    """A FullIteration with a checkpoint, which is saved and loaded while it trains."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.file = os.path.join(worker.folder, f"{id(self)}.pt")
        self.nets = worker.twins()
        self.optimizers = [pianola.optim.AdamW(n.parameters(), lr=1e-2) for n in self.nets]
        self.iteration = pianola.FullIteration(
            lambda batches: self.step(0, batches), warmup=2, generators=[self.nets[0].generator], outputs="clone"
        )
        self.parts = pianola.Checkpoint().add("model", self.nets[0]).add("optimizer", self.optimizers[0])
        self.parts.add_generator("generator", self.nets[0].generator)

    def step(self, of: int, batches: Any) -> torch.Tensor:
        self.optimizers[of].zero_grad()
        losses = [self.nets[of](x).square().mean() for x in batches]
        for loss in losses:
            loss.backward()
        self.optimizers[of].step()
        return torch.stack([loss.detach() for loss in losses]).sum()

    def steps(self) -> None:
        for _ in range(self.worker.random.randint(1, 4)):
            batches = [self.worker.batch(), self.worker.batch()]
            results = [self.iteration(batches), self.step(1, batches)]
            self.worker.tally.add("calls")
            self.worker.same("training: loss", results[0], results[1])
            self.worker.same_nets("training", *self.nets)

    def checkpoint(self) -> None:
        """Trains on, goes back, and trains the same again."""
        self.parts.save(self.file)
        numbers = self.worker.numbers.get_state()
        expected = self.after_steps()
        self.parts.load(self.file)
        with self.twin_as(0):
            self.worker.numbers.set_state(numbers)
            self.worker.same("after a checkpoint", self.after_steps(), expected)
        self.worker.tally.add("checkpoints")

    def after_steps(self) -> "list[torch.Tensor]":
        for _ in range(2):
            self.iteration([self.worker.batch(), self.worker.batch()])
            self.worker.tally.add("calls")
        return [p.detach().clone() for p in self.nets[0].parameters()] + [self.nets[0].generator.get_state()]

    @contextlib.contextmanager
    def twin_as(self, of: int) -> "Iterator[None]":
        """Afterwards the eager twin is where the graphed one is."""
        yield
        one, other = self.nets
        other.load_state_dict(one.state_dict())
        self.optimizers[1].load_state_dict(self.optimizers[of].state_dict())
        other.generator.set_state(one.generator.get_state())
        for mine, theirs in zip(one.parameters(), other.parameters()):
            theirs.grad = None if mine.grad is None else mine.grad.detach().clone()


class Seen:
    """A set of numbers in memory that does not grow."""

    SLOTS = 2**20

    def __init__(self) -> None:
        self.slots = array.array("Q", bytes(8 * self.SLOTS))
        self.used = 0

    def add(self, number: int) -> bool:
        """Whether it is new."""
        if self.used > self.SLOTS // 2:
            self.slots[:] = array.array("Q", bytes(8 * self.SLOTS))
            self.used = 0
        slot = number % self.SLOTS
        while self.slots[slot] not in (0, number):
            slot = (slot + 1) % self.SLOTS
        new = self.slots[slot] == 0
        self.slots[slot] = number
        self.used += new
        return new


class Masks:
    """Dropout masks of the default generator, in eager mode: none may appear twice, whatever other threads capture."""

    def __init__(self, device: torch.device, tally: Tally) -> None:
        self.ones = torch.ones(256, device=device)
        self.tally = tally
        self.seen = Seen()

    def run_one(self) -> None:
        drawn = []
        for _ in range(20):
            try:
                drawn.append(torch.nn.functional.dropout(self.ones, 0.5))
            except RuntimeError as error:  # torch's, while a capture records on CUDA
                if "Offset increment outside graph capture" not in str(error):
                    raise
                self.tally.add("draws that torch refused")
        for mask in drawn:
            digest = hashlib.blake2b((mask != 0).cpu().numpy().tobytes(), digest_size=8).digest()
            self.tally.add("masks")
            if not self.seen.add(int.from_bytes(digest, "little") | 1):
                raise Wrong("a dropout mask appeared twice")
        time.sleep(0.002)


class Soak:
    """Threads that work until told to stop, and stand still where memory is measured."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.device = torch.device(options.device)
        self.tally = Tally()
        self.until = time.monotonic() + 60 * options.minutes
        self.change = threading.Condition()
        self.working = 0  # threads that are, or stand still
        self.standing = 0
        self.pause = False
        self.samples: list[tuple[float, float]] = []
        self.resident: list[tuple[float, float]] = []
        self.reserved: list[int] = []

    def work(self, part: Any) -> None:
        while time.monotonic() < self.until:
            try:
                part.run_one()
            except Wrong as wrong:
                self.tally.note("wrong", str(wrong))
            except Exception:  # noqa: BLE001  counted, and the first ones shown
                self.tally.note("errors", traceback.format_exc())
            self.stand_still()
        with self.change:
            self.working -= 1
            self.change.notify_all()

    def stand_still(self) -> None:
        with self.change:
            self.standing += 1
            self.change.notify_all()
            self.change.wait_for(lambda: not self.pause)
            self.standing -= 1

    def captures(self) -> int:
        return self.tally.counts["captures"] + self.tally.counts["failed captures"]

    def measure(self) -> None:
        with self.change:
            self.pause = True
            self.change.wait_for(lambda: self.standing == self.working)
            self.samples.append((self.captures(), memory.host_bytes()))
            self.resident.append((self.captures(), memory.resident_bytes()))
            self.reserved.append(memory.reserved_bytes(self.device))
            self.pause = False
            self.change.notify_all()

    def run(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            parts: list[Any] = [
                Worker(self.device, self.options.seed * 1000 + i, self.tally, folder, self.options.only)
                for i in range(self.options.threads)
            ]
            parts.append(Masks(self.device, self.tally))
            threads = [threading.Thread(target=self.work, args=(part,), daemon=True) for part in parts]
            started = time.monotonic()
            self.working = len(threads)
            for thread in threads:
                thread.start()
            # The first fifth fills caches and tables of libraries.
            length = self.until - started
            for i in range(17):
                rest = started + length * (0.2 + 0.75 * i / 16) - time.monotonic()
                time.sleep(max(rest, 0))
                self.measure()
            for thread in threads:
                thread.join()

    def report(self) -> "dict[str, Any]":
        counts = self.tally.counts
        return {
            "device": self.options.device,
            "minutes": self.options.minutes,
            "threads": self.options.threads,
            "calls": counts["calls"],
            "checks": counts["checks"],
            "captures": counts["captures"],
            "failed_captures": counts["failed captures"],
            "checkpoints": counts["checkpoints"],
            "masks": counts["masks"],
            "draws_that_torch_refused": counts["draws that torch refused"],
            "wrong": counts["wrong"],
            "errors": counts["errors"],
            "host_kib_a_capture": round(memory.slope(self.samples) / 1024, 3),
            "resident_kib_a_capture": round(memory.slope(self.resident) / 1024, 3),
            "device_growth_mib": round(memory.growth(self.reserved) / 2**20, 1),
            "device_mib": [round(reserved / 2**20) for reserved in self.reserved],
            "scenarios": dict(sorted(self.tally.scenarios.items())),
        }


def failures(report: "dict[str, Any]") -> "list[str]":
    found = [f"{report[what]} {what}" for what in ("wrong", "errors") if report[what]]
    found += [f"no {what}" for what in ("calls", "checks", "captures", "failed_captures", "checkpoints", "masks") if not report[what]]
    if report["host_kib_a_capture"] > HOST_LIMIT_KIB:
        found.append(f"host memory grew by {report['host_kib_a_capture']} KiB a capture")
    if report["device_growth_mib"] > DEVICE_LIMIT_MIB:
        found.append(f"device memory grew by {report['device_growth_mib']} MiB")
    return found


def main() -> int:
    memory.let_malloc_count()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", help="a scenario, by the name of its method; may be given again")
    parser.add_argument("--json")
    options = parser.parse_args()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    logging.getLogger("pianola").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    soak = Soak(options)
    soak.run()
    report = soak.report()
    for text in soak.tally.first:
        print(text, file=sys.stderr)
    for name, value in report.items():
        print(f"{name:26}{value}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
    found = failures(report)
    print("soak: " + ("; ".join(found) if found else "right, and memory is flat"))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
