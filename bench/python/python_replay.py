"""Host time of replaying a captured training step from Python, against the same call in C++.

The step is that of bench/models/mlp.cpp. pianola_bench measures the C++ call in processes of its own that take turns with
this one, which waits meanwhile.
"""

import json
import math
import subprocess
import tempfile
from pathlib import Path

import pianola
import torch
from measuring import alternate, case, check_equal, require_within, series
from models import InitialValues
from torch.nn import functional

CPP = "Graph::replay() in C++"
GRAPH = "pianola.Graph.replay()"
CUDA_GRAPH = "pianola.CUDAGraph.replay()"
TORCH = "torch.cuda.CUDAGraph.replay()"
TURNS = 4  # of this process and pianola_bench
ITERATIONS, BURST = 40, 20  # as in bench/cuda/training_step.cpp
CHECKED_STEPS = 5

# pianola_bench's benchmark of this step, and the measure of its case.
CPP_BENCHMARKS = {"cuda": ("cuda/training_step", "host time per step"), "cpu": ("cpu/tape_training_step", "time per step")}
TIMEOUT_S = 120


class Step:
    """Forward, mean squared error, backward and fused AdamW: Mlp of bench/models/mlp.cpp."""

    def __init__(self, device, layers=16, width=64, batch=32):
        values = InitialValues(device)
        self.parameters = []
        for _ in range(layers):
            self.parameters.append(values.normal((width, width), math.sqrt(2 / width)).requires_grad_())
            self.parameters.append(values.normal((width,), 0.1).requires_grad_())
        self.averages = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.square_averages = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.steps = [torch.zeros((), device=device) for _ in self.parameters]
        self.learning_rate = torch.full((), 1e-5, device=device)
        self.x, self.target = values.normal((batch, width)), values.normal((batch, width))
        self.loss = None

    def forward(self):
        x = self.x
        for i in range(0, len(self.parameters), 2):
            x = torch.addmm(self.parameters[i + 1], functional.relu(x) if i else x, self.parameters[i])
        return x

    def train(self):
        loss = functional.mse_loss(self.forward(), self.target)
        gradients = torch.autograd.grad(loss, self.parameters)
        with torch.no_grad():
            torch._foreach_add_(self.steps, 1)
            torch._fused_adamw_(self.parameters, gradients, self.averages, self.square_averages, [], self.steps,
                                lr=self.learning_rate, beta1=0.9, beta2=0.999, weight_decay=0.01, eps=1e-8,
                                amsgrad=False, maximize=False)
        self.loss = loss.detach()

    def state(self):
        return [self.loss, *self.parameters, *self.averages, *self.square_averages, *self.steps]


def capture_with_graph(step, device, _stream):
    graph = pianola.Graph(device)
    graph.capture(step.train, warmup=1)
    return graph


def capture_with_cuda_graph(step, device, stream):
    graph = pianola.CUDAGraph()
    with pianola.graph(graph, stream=stream, device=device):
        step.train()
    return graph


def capture_with_torch(step, _device, stream):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step.train()
    return graph


def prepare(device, stream):
    """{contender: replay}, all checked against eager."""
    ways = {GRAPH: capture_with_graph, CUDA_GRAPH: capture_with_cuda_graph}
    if device == "cuda":
        ways[TORCH] = capture_with_torch
    Step(device).train()  # a capture needs its libraries started on this stream
    eager, steps, replays = Step(device), {}, {}
    for name, capture in ways.items():
        steps[name] = Step(device)
        replays[name] = capture(steps[name], device, stream).replay
    for _ in range(CHECKED_STEPS):
        eager.train()
        for name, replay in replays.items():
            replay()
            check_equal(name, steps[name].state(), eager.state())
    return replays


def measure_cpp(settings, blocks):
    """Samples of the C++ call."""
    benchmark, measured = CPP_BENCHMARKS[settings.device]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        command = [settings.build / "bench/pianola_bench", benchmark, "--device", settings.device, "--blocks", str(blocks),
                   "--json", file, *(["--quick"] if settings.quick else [])]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=TIMEOUT_S)
        cases = json.loads(file.read_text())["results"][0]["cases"]
    one = next(one for one in cases if one["measure"] == measured)
    return next(contender["samples"] for contender in one["contenders"] if contender["contender"] == "Graph::replay()")


def run(settings):
    iterations, blocks = settings.some(ITERATIONS), math.ceil(settings.rounds / TURNS)
    stream = pianola.Stream(settings.device)
    samples = {CPP: []}
    with pianola.stream(stream):
        replays = prepare(settings.device, stream)
        for _ in range(TURNS):
            samples[CPP] += measure_cpp(settings, blocks)
            for name, taken in series(alternate(replays, iterations, BURST, blocks), "host").items():
                samples.setdefault(name, []).extend(taken)
    made = case("MLP 16 x 64, batch 32, AdamW", "host time per replay", iterations, CPP, samples)
    for name in (GRAPH, CUDA_GRAPH):
        require_within(made, name, CPP, samples, 2)
    return [made]
