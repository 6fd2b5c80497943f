"""Whole training steps of fully_shard (FSDP2) on two ranks: NCCL on two GPUs, Gloo where it only has to run."""

import gc
import statistics

import python_ranks
import torch
from python_ranks import BY_HAND, EAGER

import measuring
import models

GRAPHED = "@pianola.graphed"
LANES = "@pianola.graphed, branches=4"
WARMUP = 4


def small(device):
    return models.transformer(device), [python_ranks.batch_of(device, 2, 64, 256)]


def wide(device):
    return models.transformer(device, width=1024, heads=16), [python_ranks.batch_of(device, 8, 512, 1024)]


# The limits: at least so many times as fast as eager, and at most so much of what torch.cuda.graph takes.
WORKLOADS = {"transformer 8x256, 2x64": (small, 4, 0.95), "transformer 8x1024, 8x512": (wide, 1, 1.0)}


class Training(python_ranks.Training):
    """Each block is a group of parameters, and so is the rest; AdamW as it is fastest."""

    warmup = WARMUP

    def _take(self, model):
        from torch.distributed.fsdp import fully_shard

        for block in model.children():
            fully_shard(block)
        self.model = fully_shard(model)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True, capturable=self.batch[0].is_cuda)

    def _graphed(self):
        import pianola

        return pianola.graphed(self.train, branches=4 if self.way == LANES else 1)

    def train(self, *batch):
        self.optimizer.zero_grad()
        loss = self.model(*batch).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def check(build, device, steps):
    """Graphed as eager, bit by bit, in parameters. @return  Bytes at their peak, by way."""
    ends, peaks, training = {}, {}, None
    for way in (EAGER, BY_HAND, GRAPHED) if device.type == "cuda" else (EAGER, GRAPHED):
        training = None
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()  # what is compared in the end
        training = Training(build, device, way)
        for _ in range(steps):
            training.step()
        ends[way] = [one.to_local().detach().clone() for one in training.model.parameters()]
        peaks[way] = torch.cuda.max_memory_allocated() - before if device.type == "cuda" else 1
    measuring.check_equal("parameters", ends[GRAPHED], ends[EAGER])
    replays = sum(one.replays for one in training.graphed.info().signatures)
    if not replays:
        raise RuntimeError(f"no step was replayed: {training.graphed.info()}")
    return peaks


def require(case, taken, peaks, at_least, at_most):
    measuring.require_ratio(case, LANES, BY_HAND, taken[LANES], taken[BY_HAND], at_most)
    gain = statistics.median(taken[EAGER]) / statistics.median(taken[GRAPHED])
    measuring.require(case, f"at least {at_least}x as fast as eager", gain, at_least, gain >= at_least)
    memory = {way: peak / peaks[EAGER] for way, peak in peaks.items()}
    text = f"peak of memory: at most 1.1x of eager's; that of {BY_HAND} is {memory.get(BY_HAND, 0):.2f}x"
    measuring.require(case, text, memory[GRAPHED], 1.1, memory[GRAPHED] <= 1.1)


def run_rank(rank, folder, kind, quick):
    device, cases = python_ranks.begin_rank(rank, folder, kind), []
    names = list(WORKLOADS)[:1] if quick and kind == "cpu" else WORKLOADS
    for name in names:
        build, at_least, at_most = WORKLOADS[name]
        peaks = check(build, device, 6 if quick else 12)
        ways = (EAGER, BY_HAND, GRAPHED, LANES) if kind == "cuda" else (EAGER, GRAPHED, LANES)
        trainings = {way: Training(build, device, way) for way in ways}
        for training in trainings.values():
            for _ in range(WARMUP + 4):
                training.step()
        iterations = 3 if quick else 20
        samples = measuring.alternate({way: one.step for way, one in trainings.items()}, iterations, 10, 2 if quick else 5)
        for kind_of_time, measured in (("wall", "time per step"), ("host", "host time per step")):
            taken = measuring.series(samples, kind_of_time)
            case = measuring.case(f"{name}, {measured}", measured, iterations, EAGER, taken)
            if BY_HAND in ways and kind_of_time == "wall":
                require(case, taken, peaks, at_least, at_most)
            cases.append(case)
        del trainings, training
        gc.collect()
    python_ranks.end_rank(rank, folder, cases)


def run(settings):
    yield from python_ranks.run_on_ranks(run_rank, settings)
