"""Training steps with optimizers as people make them, whose numbers the host computes anew at each call: what a replay costs
that gives the graph new numbers, against one whose optimizer keeps them on the device (capturable=True)."""

import dataclasses
import functools
import os
import statistics

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # deterministic algorithms want it, before CUDA starts

import measuring  # noqa: E402
import models  # noqa: E402
import torch  # noqa: E402
from measuring import alternate, case, series  # noqa: E402
from training import EAGER, STEP, Reference, Training, Workload  # noqa: E402

ITERATIONS, BURST = 20, 10


class Lion(torch.optim.Optimizer):
    """As in the paper's appendix, with a rate that falls: no code of Pianola names it."""

    def __init__(self, params, lr=1e-5, betas=(0.9, 0.99), weight_decay=0.1):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["lr"] *= 0.9999
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.data.mul_(1 - group["lr"] * group["weight_decay"])
                state = self.state[p]
                if len(state) == 0:
                    state["exp_avg"] = torch.zeros_like(p)
                update = state["exp_avg"].clone().mul_(beta1).add(p.grad, alpha=1 - beta1).sign_()
                p.add_(update, alpha=-group["lr"])
                state["exp_avg"].mul_(beta2).add_(p.grad, alpha=1 - beta2)


OPTIMIZERS = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-5),
    "AdamW, capturable": lambda p: torch.optim.AdamW(p, lr=1e-5, capturable=next(iter(p)).is_cuda),
    "AdamW, foreach=False": lambda p: torch.optim.AdamW(p, lr=1e-5, foreach=False),
    "Lion": lambda p: Lion(p),
}


def made_of_list(optimizer):
    return lambda parameters: optimizer(list(parameters))


def workloads(settings):
    layers, blocks = settings.some(75), settings.some(12)
    x, target = models.fixed_batch(settings.device, 2, 32, 64)
    yield Workload(f"MLP of {2 * layers} parameters, 64 wide, batch 32", functools.partial(models.linear_chain, settings.device, layers),
                   None, (x, target))
    width, length = (32, 8) if settings.quick else (768, 512)
    x, target = models.fixed_batch(settings.device, 2, 8, length, width)
    yield Workload(f"transformer {blocks} x {width}, batch 8 x {length}", functools.partial(models.transformer, settings.device, blocks, width),
                   None, (x, target))


def trainings_of(workload, names):
    """Eager and graphed with each optimizer, compared bit by bit."""
    for name in names:
        made = dataclasses.replace(workload, optimizer=made_of_list(OPTIMIZERS[name]))
        reference = Reference(made)
        graphed = Training(made, STEP).graph()
        reference.check(graphed)
        yield f"{name}, {EAGER}", reference.training
        yield f"{name}, {STEP}", graphed


def require_mostly_replayed(training):
    """The optimizer's numbers are noticed while it warms up, which is then done twice."""
    if training.graphed and sum(one.replays for one in training.graphed.info().signatures) < training.steps - 9:
        raise RuntimeError(f"{training.workload.title}: not all calls were replayed\n{training.graphed.info()}")


def samples_of(made):
    return {one["contender"]: one["samples"] for one in made["contenders"]}


def cases_of(settings, workload, names, burst=BURST):
    trainings = dict(trainings_of(workload, names))
    samples = alternate({name: one.step for name, one in trainings.items()}, settings.some(ITERATIONS), burst, settings.rounds)
    for training in trainings.values():
        require_mostly_replayed(training)
    baseline = f"AdamW, {EAGER}"
    host, wall = series(samples, "host"), series(samples, "wall")
    host_case = case(workload.title, "host time per step", ITERATIONS, baseline, host)
    wall_case = case(workload.title, "time per step", ITERATIONS, baseline, wall)
    for name in names:
        if name != "AdamW, capturable":
            measuring.require_speedup(host_case, f"{name}, {STEP}", f"{name}, {EAGER}", host, 2)
    median = {name: statistics.median(taken) for name, taken in wall.items()}
    ratio = median[f"AdamW, {STEP}"] / median[f"AdamW, capturable, {STEP}"]
    measuring.require(wall_case, "AdamW as it comes: at most 1.02x of the capturable one", ratio, 1.02, ratio <= 1.02)
    return [host_case, wall_case]


# What AdamW's numbers go to: _foreach_div_ takes 96 tensors a kernel, _foreach_addcdiv_ 48.
CHANGED_KERNELS = 2 + 4


def run(settings):
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # kernels that only help to find bugs
    small, large = workloads(settings)
    host, wall = cases_of(settings, small, list(OPTIMIZERS))
    measuring.require_within(host, f"AdamW, {STEP}", f"AdamW, capturable, {STEP}", samples_of(host), 100 + 6 * CHANGED_KERNELS)
    yield from (host, wall)
    # The device takes longer than the host: behind two steps the host would wait for it, which is not what it costs.
    yield from cases_of(settings, large, ["AdamW", "AdamW, capturable", "Lion"], burst=2)
