"""Whole training iterations from Python: pianola.FullIteration against torch.cuda.graph over forward and backward, with
torch's fused AdamW, its gradient scaler and its clipping outside, as its documentation has it.

Four microbatches an iteration; all train alike, bit for bit: parameters, what the optimizer keeps, and the scale.
"""

import dataclasses
import functools

import measuring
import models
import pianola
import torch
from branch_words import branch_note
from measuring import alternate, case, check_equal, series
from torch.nn import functional

TORCH = "torch.cuda.graph, optimizer outside"
EAGER = "eager Python"
OURS = "pianola.FullIteration, static inputs"
BRANCHED = "pianola.FullIteration, static inputs, branches = 4"

MICROBATCHES = 4
WARMUP = 3  # eager iterations in front of a capture, which count
CHECKED = 10
ITERATIONS, BURST = 20, 10
LEARNING_RATE = 1e-5  # as in bench/models/iteration.cpp


@dataclasses.dataclass
class Workload:
    title: str
    model: functools.partial
    microbatches: list
    branches_speedup: float


def workloads(settings):
    device = settings.device
    yield Workload(f"MLP {settings.some(16)} x 64, {MICROBATCHES} microbatches of 32",
                   functools.partial(models.linear_chain, device, settings.some(16)),
                   list(models.fixed_batch(device, MICROBATCHES, 32, 64).unbind()), 1.6)
    yield Workload(f"transformer {settings.some(8)} x 256, {MICROBATCHES} microbatches of 2 x 64",
                   functools.partial(models.transformer, device, settings.some(8)),
                   list(models.fixed_batch(device, MICROBATCHES, 2, 64, 256).unbind()), 1.2)


def forward_backward(model, scaler, microbatches):
    total = 0
    for batch in microbatches:
        loss = functional.mse_loss(model(batch), batch.flip(0)) / len(microbatches)
        scaler.scale(loss).backward()
        total = total + loss.detach()
    return total


class OfTorch:
    """All parts are torch's; forward and backward are in a graph, or nothing is."""

    def __init__(self, workload, graph, stream):
        self.microbatches = workload.microbatches
        self.model = workload.model()
        self.parameters = list(self.model.parameters())
        device = self.parameters[0].device
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=torch.tensor(LEARNING_RATE, device=device), fused=True, capturable=device.type == "cuda")
        self.scaler = torch.amp.GradScaler(device.type)
        self.run = self.eager
        if graph:
            for _ in range(WARMUP):
                self.step()
            self.optimizer.zero_grad()  # the graph makes gradients of its own
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=stream):
                self.loss = self.eager()
            self.run = self.graph.replay

    def eager(self):
        self.optimizer.zero_grad()
        return forward_backward(self.model, self.scaler, self.microbatches)

    def step(self):
        self.run()
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def state(self):
        return state_of(self.parameters, self.optimizer.state_dict()["state"], self.scaler)


class OfPianola:
    """All parts are Pianola's, the check for NaN included, and all are in the graph."""

    def __init__(self, workload, branches):
        self.model = workload.model()
        self.parameters = list(self.model.parameters())
        device = self.parameters[0].device
        self.optimizer = pianola.optim.AdamW(self.parameters, lr=LEARNING_RATE)
        self.scaler = pianola.GradScaler(device)
        self.watch = pianola.FiniteWatch(device)
        self.inputs = pianola.StaticInputs(device)
        self.inputs.load(workload.microbatches)
        self.iteration = pianola.FullIteration(self.train, warmup=WARMUP, branches=branches)

    def train(self, microbatches):
        self.optimizer.zero_grad()
        loss = forward_backward(self.model, self.scaler, microbatches)
        self.scaler.unscale_(self.optimizer)
        pianola.clip_grad_norm_(self.parameters, 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.watch.check("loss", loss)
        self.watch.end_step()
        return loss

    def step(self):
        self.iteration(self.inputs)

    def state(self):
        return state_of(self.parameters, self.optimizer.state_dict()["state"], self.scaler)

    def require_captured(self):
        (info,) = self.iteration.info().signatures
        if info.state != "captured":
            raise RuntimeError(f"the iteration was not captured: {info}")
        return info


def state_of(parameters, kept, scaler):
    tensors = [parameter.detach().clone() for parameter in parameters]
    tensors += [kept[i][name].clone() for i in sorted(kept) for name in ("step", "exp_avg", "exp_avg_sq")]
    return [*tensors, torch.tensor(scaler.state_dict()["scale"])]


def contenders(settings, workload, stream):
    made = {OURS: OfPianola(workload, branches=0), BRANCHED: OfPianola(workload, branches=4),
            EAGER: OfTorch(workload, graph=False, stream=stream)}
    reference = made[EAGER]
    if settings.device == "cuda":
        made[TORCH] = OfTorch(workload, graph=True, stream=stream)
        for _ in range(CHECKED):
            made[TORCH].step()
    for _ in range(CHECKED):
        for way in (OURS, BRANCHED, EAGER):
            made[way].step()
        for way in (OURS, BRANCHED):
            check_equal(f"{workload.title}, {way}", made[way].state(), reference.state())
    if TORCH in made:
        for _ in range(WARMUP):  # those that came before its capture
            for way in (OURS, BRANCHED, EAGER):
                made[way].step()
        check_equal(f"{workload.title}, {TORCH}", made[TORCH].state(), reference.state())
    return made


def cases_of(settings, workload, stream):
    made = contenders(settings, workload, stream)
    iterations = settings.some(ITERATIONS)
    samples = alternate({way: one.step for way, one in made.items()}, iterations, BURST, settings.rounds)
    note = branch_note(made[BRANCHED].require_captured().branches)
    baseline = TORCH if TORCH in made else EAGER
    wall, host = series(samples, "wall"), series(samples, "host")
    time = case(workload.title, "time per iteration", iterations, baseline, wall, notes=[note])
    time_on_host = case(workload.title, "host time per iteration", iterations, baseline, host)
    if TORCH in made:
        measuring.require_speedup(time, OURS, TORCH, wall, 1)
        measuring.require_speedup(time, BRANCHED, TORCH, wall, workload.branches_speedup)
        measuring.require_speedup(time_on_host, OURS, TORCH, host, 10)
    return time, time_on_host


def run(settings):
    torch.backends.cuda.matmul.allow_tf32 = True  # as training has it
    stream = pianola.Stream(settings.device)
    for workload in workloads(settings):
        with pianola.stream(stream):
            yield from cases_of(settings, workload, stream)
