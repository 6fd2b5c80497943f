"""A training step in Python, plain and audited.

An audited run is taken as the difference of audits with many runs and with few, so that it holds its share of the comparison.
"""

import statistics
import time

import pianola
import torch
from measuring import case
from training import mlp, train_step

MANY, FEW = 22, 2
EAGER = "eager Python"
AUDITED = "audited"
NO_SOURCES = "audited, no source lines"


def make_step(workload):
    model = workload.model()
    run = train_step(model, workload.optimizer(model.parameters()), workload.criterion)
    batch = workload.batch

    def step():
        return run(*batch)

    return step


def eager_runs(step, device, count):
    start = time.perf_counter()
    for _ in range(count):
        step()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / count * 1e6


def audited_run(step, sources, many):
    def seconds(iterations):
        start = time.perf_counter()
        report = pianola.audit(step, iterations=iterations, sources=sources, trial=False)
        spent = time.perf_counter() - start
        if not report.ok:
            raise RuntimeError(f"a clean step has hazards:\n{report}")
        return spent

    return (seconds(many) - seconds(FEW)) / (many - FEW) * 1e6


def run(settings):
    if settings.device == "cpu":
        torch.set_num_threads(1)
    step = make_step(mlp(settings.device))
    many = FEW + 1 if settings.quick else MANY
    for _ in range(5):
        step()
    samples = {EAGER: [], AUDITED: [], NO_SOURCES: []}
    for _ in range(settings.rounds):
        samples[EAGER].append(eager_runs(step, settings.device, many))
        samples[AUDITED].append(audited_run(step, True, many))
        samples[NO_SOURCES].append(audited_run(step, False, many))
    made = case("MLP 16 x 64, batch 32, Adam", "time per run", many - FEW, EAGER, samples)
    require_ratio(made, AUDITED, samples, 3)
    require_ratio(made, NO_SOURCES, samples, 1.5)
    return [made]


def require_ratio(target, contender, samples, limit):
    measured = statistics.median(samples[contender]) / statistics.median(samples[EAGER])
    target["requirements"].append({
        "requirement": f"{contender}: at most {limit:g}x of {EAGER}",
        "met": measured <= limit,
        "measured": round(measured, 3),
        "limit": limit,
    })
