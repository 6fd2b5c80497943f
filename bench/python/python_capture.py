"""What a capture takes from Python: torch's own classes, and the same names under pianola.compat().

The step and the module are those of python_replay.py and python_callables.py. Each capture is dropped before the next.
"""

import pianola
import torch
from measuring import alternate, case, check_equal, series
from python_replay import Step

TORCH = "torch"
COMPAT = "the same names under pianola.compat()"
ITERATIONS, BURST = 10, 5
CHECKED_STEPS = 3


def capture_step(step, stream):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step.train()
    return graph


def check_replays(capture):
    step, eager = Step("cuda"), Step("cuda")
    graph = capture(step)
    for _ in range(CHECKED_STEPS):
        eager.train()
        graph.replay()
        check_equal("a captured step", step.state(), eager.state())


def graphed_layers(layers=16, width=64):
    torch.manual_seed(0)
    parts = [torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU()).cuda() for _ in range(layers)]
    sample = torch.randn(32, width, device="cuda", requires_grad=True)
    return torch.cuda.make_graphed_callables(torch.nn.Sequential(*parts), (sample,))


def under_compat(function):
    def call():
        with pianola.compat():
            return function()

    return call


def run(settings):
    if settings.device != "cuda":
        settings.notes.append("torch captures on CUDA alone")
        return []
    stream, step = torch.cuda.Stream(), Step("cuda")
    step.train()  # a capture needs its libraries started on this stream
    torch.cuda.synchronize()

    def capture():
        return capture_step(step, stream)

    def check(captured):
        return capture_step(captured, stream)

    check_replays(check)
    with pianola.compat():
        check_replays(check)
    iterations, burst = settings.some(ITERATIONS), min(BURST, settings.some(ITERATIONS))
    cases = []
    for name, function in {"capture of a training step of an MLP 16 x 64": capture,
                           "make_graphed_callables of an MLP 16 x 64": graphed_layers}.items():
        ways = {TORCH: function, COMPAT: under_compat(function)}
        samples = series(alternate(ways, iterations, burst, settings.rounds), "host")
        cases.append(case(name, "host time per capture", iterations, TORCH, samples))
    return cases
