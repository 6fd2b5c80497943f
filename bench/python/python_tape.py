"""A training step of an MLP on the CPU, decorated by @pianola.graphed, against the same step in eager Python."""

import measuring
import torch
from measuring import alternate, case, series
from training import EAGER, STEP, Reference, Training, mlp, require_replayed

ITERATIONS = 40
ROUNDS = 20


def run(settings):
    torch.set_num_threads(1)
    workload = mlp("cpu")
    eager = Reference(workload)
    graphed = Training(workload, STEP).graph()
    eager.check(graphed)
    iterations = settings.some(ITERATIONS)
    rounds = settings.rounds if settings.quick else ROUNDS
    samples = series(alternate({EAGER: eager.training.step, STEP: graphed.step}, iterations, iterations, rounds), "wall")
    require_replayed(graphed)
    made = case(f"{workload.title}, one thread", "time per step", iterations, EAGER, samples)
    measuring.require_speedup(made, STEP, EAGER, samples, 2)
    return [made]
