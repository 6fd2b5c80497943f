"""From the end of the last warm-up call to the end of the first replay, with AdamW as it comes: the capture, and the trial captures
that show which words of kernels hold the optimizer's numbers. They are made in the first calls whose numbers change, so the calls
behind the capture count as well, less what a replay takes. What all of that leaves in memory is looked at as well."""

import functools
import importlib.util
import statistics
import time

import models
import pianola
import torch
from measuring import case, require, synchronize
from python_models import LanguageModel
from torch.nn import functional
from training import EAGER, Workload, train_step

FIRST, LATER, SETTLING = "capture and trials", "a replay", 4
CALLS, MOST_WARM_UPS = 40, 12


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-5)


def gpt2(settings):
    import transformers

    sizes = dict(n_layer=2, n_embd=32, n_head=2, vocab_size=100) if settings.quick else {}
    batch, length = (1, 8) if settings.quick else (4, 256)
    config = transformers.GPT2Config(n_positions=1024, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0, use_cache=False, **sizes)
    words = torch.randint(config.vocab_size, (batch, length), generator=torch.Generator().manual_seed(1)).to(settings.device)
    model = lambda: LanguageModel(transformers.GPT2LMHeadModel(config).train(), length).to(settings.device)  # noqa: E731
    title = f"GPT-2, {config.n_layer} x {config.n_embd}, batch {batch} x {length}"
    yield Workload(title, model, adamw, (words,), criterion=lambda loss: loss), 1e6


def resnet(settings):
    import torchvision

    size, batch = (32, 2) if settings.quick else (224, 32)
    make = torchvision.models.resnet18 if settings.quick else torchvision.models.resnet50
    images, labels = models.fixed_batch(settings.device, 1, batch, 3, size, size)[0], torch.arange(batch, device=settings.device)
    yield Workload(f"{make.__name__}, batch {batch} x 3 x {size} x {size}", lambda: make().train().to(settings.device), adamw,
                   (images, labels), functional.cross_entropy), 1e6


def mlp(settings):
    layers = settings.some(75)
    x, target = models.fixed_batch(settings.device, 2, 32, 64)
    yield Workload(f"MLP of {2 * layers} parameters, 64 wide, batch 32", functools.partial(models.linear_chain, settings.device, layers),
                   adamw, (x, target)), None


def training_of(workload, graphed):
    model = workload.model()
    step = train_step(model, workload.optimizer(model.parameters()), workload.criterion)
    return pianola.graphed(step) if graphed else step


def times_of(step, batch, calls=CALLS):
    taken = []
    for _ in range(calls):
        synchronize()
        start = time.perf_counter_ns()
        step(*batch)
        synchronize()
        taken.append((time.perf_counter_ns() - start) / 1000)
    return taken


def memory(device):
    """In use by anybody, and in torch's books."""
    if torch.device(device).type != "cuda":
        return 0, 0
    free, total = torch.cuda.mem_get_info()
    return total - free, torch.cuda.memory_allocated()


def first_replay(workload):
    """Samples of one graph: from warm-up to the first replays; a later replay; bytes that the calls behind the capture left."""
    step, warm_ups = training_of(workload, graphed=True), 0
    while not sum(one.graphs for one in step.info().signatures):
        if warm_ups > MOST_WARM_UPS:
            raise RuntimeError(f"{workload.title}: no graph after {warm_ups} calls\n{step.info()}")
        first = times_of(step, workload.batch, calls=1)
        warm_ups += 1
    before = memory(workload.device)
    first += times_of(step, workload.batch, SETTLING)
    later = statistics.median(times_of(step, workload.batch))
    grown = [max(now - then, 0) for now, then in zip(memory(workload.device), before)]
    return sum(first) - SETTLING * later, later, sum(grown)


def run(settings):
    """Each graph is of a model of its own. Pools of torch's allocator are warm from the first one, which does not count."""
    for package, make in (("transformers", gpt2), ("torchvision", resnet), ("torch", mlp)):
        if importlib.util.find_spec(package) is None:
            settings.notes.append(f"{package} is not installed: its model is left out")
            continue
        for workload, limit in make(settings):
            eager = times_of(training_of(workload, graphed=False), workload.batch)[CALLS // 2 :]
            samples = [first_replay(workload) for _ in range(settings.some(4))][1:]
            first, later, grown = (list(one) for one in zip(*samples))
            made = case(workload.title, "time per call", 1, EAGER, {EAGER: eager, FIRST: first, LATER: later},
                        notes=[f"what the calls behind the capture left in memory: {max(grown)} bytes"])
            six = 6 * statistics.median(eager) + 0.2e6
            taken = statistics.median(first)
            require(made, "capture and trials, us: at most 6 eager steps and 0.2 s", taken, round(six), taken <= six)
            if limit is not None:
                require(made, "capture and trials, us: at most 1 s", taken, limit, taken <= limit)
            require(made, "bytes that trials leave in memory: none", max(grown), 0, max(grown) == 0)
            yield made
