"""Whole training steps of DistributedDataParallel on two ranks: NCCL on two GPUs, Gloo where it only has to run."""

import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic algorithms want it, before CUDA starts

import gc
import json
import statistics
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

import measuring
import models

RANKS = 2
EAGER, GRAPHED = "eager", "@pianola.graphed, branches=4"
BY_HAND, COMPILED = "torch.cuda.graph", "torch.compile"
ALONE = "@pianola.graphed, branches=4, no reduction"
LAST = "all_reduce of the last bucket alone"
LAUNCH_US = 10  # that a replay may take the host, above the bare launch of torch.cuda.graph
COLLECTIVES, AGREEMENT_US = 1000, 50_000  # of a graph whose ranks agree in that time
WARMUP = 11  # runs that a capture with DistributedDataParallel needs


def mlp(device):
    return models.linear_chain(device), [batch_of(device, 64, 64)]


def transformer(device):
    return models.transformer(device), [batch_of(device, 2, 64, 256)]


def resnet50(device):
    from resnet import resnet50 as build

    return build(1000).to(device), [batch_of(device, 8, 3, 224, 224)]


def gpt2(device):
    import transformers

    model = transformers.GPT2LMHeadModel(transformers.GPT2Config()).to(device)
    tokens = torch.randint(0, 50_257, (2, 64), generator=torch.Generator().manual_seed(dist.get_rank())).to(device)
    return LanguageModel(model), [tokens]


class LanguageModel(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        return self.model(tokens, labels=tokens).loss


COMPILED_TOO = (mlp, transformer)  # the others take minutes to compile
# The limit: at most so much of what torch.cuda.graph takes.
WORKLOADS = {
    "MLP 16x64": (mlp, 0.65),
    "transformer 8x256": (transformer, 0.78),
    "ResNet-50, batch 8": (resnet50, 0.82),
    "GPT-2 small, 2x64": (gpt2, 1.0),
}


def batch_of(device, *sizes):
    """Another one on each rank."""
    return torch.randn(sizes, generator=torch.Generator().manual_seed(10 + dist.get_rank())).to(device)


class Training:
    """One way to train, from the same seeds as all others."""

    warmup = WARMUP

    def __init__(self, build, device, way):
        torch.manual_seed(0)
        self.way, self.graph = way, None
        model, self.batch = build(device)
        if way == BY_HAND:  # as torch's documentation has it
            self.stream = torch.cuda.Stream()
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                self._take(model)
                for _ in range(self.warmup):
                    self.train(*self.batch)
                self.graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self.graph, stream=self.stream):
                    self.train(*self.batch)
            torch.cuda.current_stream().wait_stream(self.stream)
            self.step = self.graph.replay
            return
        self._take(model)
        if way == COMPILED:
            self.model = torch.compile(self.model)
        if way in (EAGER, COMPILED):
            self.step = lambda: self.train(*self.batch)
            return
        self.graphed = self._graphed()
        self.step = lambda: self.graphed(*self.batch)

    def _graphed(self):
        import pianola

        return pianola.graphed(self.train, branches=4)

    def _take(self, model):
        self.model = model if self.way == ALONE else DistributedDataParallel(model, gradient_as_bucket_view=True)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=self.batch[0].is_cuda)

    def train(self, *batch):
        self.optimizer.zero_grad(set_to_none=False)
        loss = self.model(*batch).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


class LastBucket:
    """The all_reduce of a DistributedDataParallel that comes last, with nothing beside it, in a graph."""

    def __init__(self, model, device):
        known = model._get_ddp_logging_data()
        sizes = known.get("rebuilt_bucket_sizes") or known["bucket_sizes"]
        bucket = torch.zeros(int(sizes.split(",")[-1]) // 4, device=device)
        dist.all_reduce(bucket)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            dist.all_reduce(bucket)
        self.step = self.graph.replay


def check(build, device, steps):
    """Graphed as eager, bit by bit, in parameters."""
    ends = []
    for way in (EAGER, GRAPHED):
        training = Training(build, device, way)
        torch.manual_seed(1)
        for _ in range(steps):
            training.step()
        ends.append([one.detach().clone() for one in training.model.parameters()])
    measuring.check_equal("parameters", ends[1], ends[0])
    replays = sum(one.replays for one in training.graphed.info().signatures)
    if not replays:
        raise RuntimeError(f"no step was replayed: {training.graphed.info()}")


def require(case, taken, kind, limit):
    if kind == "host":
        measuring.require_within(case, GRAPHED, BY_HAND, taken, LAUNCH_US)
        return
    measuring.require_ratio(case, GRAPHED, BY_HAND, taken[GRAPHED], taken[BY_HAND], limit)
    last = statistics.median(taken[LAST])
    excess = statistics.median(taken[GRAPHED]) - statistics.median(taken[ALONE])
    measuring.require(case, "the reduction adds at most the last bucket's, and 10 us", excess, last + 10, excess <= last + 10)


def agreement(device, captures):
    import pianola

    tensors = [torch.ones(8, device=device) for _ in range(10)]
    taken = {"capture": [], "agreement of the ranks": []}

    def step():
        for number in range(COLLECTIVES):
            dist.all_reduce(tensors[number % len(tensors)])

    for _ in range(captures):
        graph = pianola.Graph(device)
        dist.barrier()
        graph.capture(step, warmup=0)
        taken["capture"].append(graph.info().capture_us)
        taken["agreement of the ranks"].append(graph.info().agreement_us)
        graph.reset()
    case = measuring.case(f"a graph of {COLLECTIVES} all_reduces", "host time of its capture", 1, "capture", taken)
    median = statistics.median(taken["agreement of the ranks"])
    measuring.require(case, "agreement of the ranks: at most 50 ms", median, AGREEMENT_US, median <= AGREEMENT_US)
    return case


def begin_rank(rank, folder, kind):
    """@return  The device of this rank."""
    torch.set_num_threads(1)
    device = torch.device("cuda", rank) if kind == "cuda" else torch.device("cpu")
    if kind == "cuda":
        torch.cuda.set_device(device)
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # kernels that only help to find bugs
    dist.init_process_group("nccl" if kind == "cuda" else "gloo", store=dist.FileStore(f"{folder}/store", RANKS), rank=rank, world_size=RANKS)
    return device


def end_rank(rank, folder, cases):
    if rank == 0:
        Path(folder, "cases.json").write_text(json.dumps(cases))
    dist.barrier()
    dist.destroy_process_group()


def run_rank(rank, folder, kind, quick):
    device, cases = begin_rank(rank, folder, kind), []
    names = list(WORKLOADS)[:1] if quick and kind == "cpu" else WORKLOADS
    for name in names:
        build, limit = WORKLOADS[name]
        check(build, device, 20)
        ways = (EAGER, BY_HAND, GRAPHED, ALONE) if kind == "cuda" else (EAGER, GRAPHED)
        if kind == "cuda" and build in COMPILED_TOO:
            ways += (COMPILED,)
        trainings = {way: Training(build, device, way) for way in ways}
        for training in trainings.values():
            for _ in range(WARMUP + 4):
                training.step()
        if kind == "cuda":
            trainings[LAST] = LastBucket(trainings[BY_HAND].model, device)
        iterations = 3 if quick else 20
        samples = measuring.alternate({way: one.step for way, one in trainings.items()}, iterations, 10, 2 if quick else 5)
        for kind_of_time, measured in (("wall", "time per step"), ("host", "host time per step")):
            case = measuring.case(f"{name}, {measured}", measured, iterations, EAGER, measuring.series(samples, kind_of_time))
            if BY_HAND in ways:
                require(case, measuring.series(samples, kind_of_time), kind_of_time, limit)
            cases.append(case)
        del trainings, training
        gc.collect()
    cases.append(agreement(device, 2 if quick else 5))
    end_rank(rank, folder, cases)


def run(settings):
    yield from run_on_ranks(run_rank, settings)


def run_on_ranks(run_rank, settings):
    """The cases of rank 0."""
    if settings.device == "cuda" and torch.cuda.device_count() < RANKS:
        settings.notes.append(f"wants {RANKS} GPUs")
        return
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run_rank, (folder, settings.device, settings.quick), nprocs=RANKS)
        yield from json.loads(Path(folder, "cases.json").read_text())
