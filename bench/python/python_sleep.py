"""Pools that sleep: what a training step's graph gives back to the driver, and how long that and its way back take, against a copy of
what is kept by pinned memory, against asking the driver for as many bytes, and against dropping the graph and capturing it again."""

import gc
import importlib.util
import time

import pianola
import torch
from measuring import case, require, synchronize
from python_memory import MIB, Trained, clean, step_of
from python_models import LanguageModel

SUSPEND, RESUME, TO_HOST, TO_DEVICE, ASKED, AGAIN = (
    "suspend", "resume", "copy of what is kept, to the host", "copy of it, to the device", "cudaMalloc of as many bytes",
    "reset and capture again, with one run to warm up")
ROUNDS = 8


def workloads(settings):
    if importlib.util.find_spec("transformers") is None:
        settings.notes.append("transformers is not installed: its models are left out")
        return
    import transformers as hf

    layers, width, vocabulary = (settings.some(12), 96, 500) if settings.quick else (12, 768, 50_257)
    batch, length = (2, 16) if settings.quick else (16, 512)
    config = hf.GPT2Config(n_layer=layers, n_embd=width, vocab_size=vocabulary, use_cache=False, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0)

    def inputs(generator):
        return {"words": torch.randint(vocabulary, (batch, length), generator=generator)}

    yield Trained(f"GPT-2 of transformers, {layers} x {width}, batch {batch} x {length}",
                  lambda: LanguageModel(hf.GPT2LMHeadModel(config), length), inputs, lambda loss, given: loss)


def milliseconds(work):
    synchronize()
    start = time.perf_counter_ns()
    work()
    synchronize()
    return (time.perf_counter_ns() - start) / 1e6


def free_bytes(device):
    return torch.cuda.mem_get_info()[0] if device != "cpu" else 0


def copies(kept, device):
    """Times of a copy of so many bytes to pinned memory, and back."""
    on_device = torch.empty(kept, dtype=torch.uint8, device=device)
    on_host = torch.empty(kept, dtype=torch.uint8, pin_memory=device != "cpu")
    there = [milliseconds(lambda: on_host.copy_(on_device, non_blocking=True)) for _ in range(ROUNDS)]
    return there, [milliseconds(lambda: on_device.copy_(on_host, non_blocking=True)) for _ in range(ROUNDS)]


def asked(count, device):
    times = []
    for _ in range(ROUNDS):
        clean(device)
        times.append(milliseconds(lambda: torch.empty(count, dtype=torch.uint8, device=device)))
    clean(device)
    return times


def sleeps_of(trained, settings):
    device = settings.device
    step = step_of(trained, device, of=torch.optim.AdamW if device != "cpu" else torch.optim.SGD)
    pool = pianola.GraphPool(device, can_sleep=True)
    graph = pianola.Graph(device)
    how = dict(pool=pool, plan_memory=True)
    graph.capture(step, warmup=3, **how)
    graph.replay()
    clean(device)
    before = free_bytes(device)
    given_back = pool.suspend()
    seen = free_bytes(device) - before
    pool.resume()
    series = {SUSPEND: [], RESUME: []}
    for _ in range(settings.some(ROUNDS)):
        graph.replay()
        series[SUSPEND].append(milliseconds(pool.suspend))
        series[RESUME].append(milliseconds(pool.resume))
    nodes = graph.info().nodes
    kept = sum(parameter.grad.nbytes for parameter in held_gradients())
    series[TO_HOST], series[TO_DEVICE] = copies(kept, device)
    series[ASKED] = asked(max(given_back, 1), device)

    def again():
        graph.reset()
        graph.capture(step, warmup=1, **how)

    series[AGAIN] = [milliseconds(again) for _ in range(settings.some(3))]
    return series, given_back, seen, kept, nodes


def held_gradients():
    gc.collect()
    return [one for one in gc.get_objects() if isinstance(one, torch.nn.Parameter) and one.grad is not None]


def median(times):
    return sorted(times)[len(times) // 2]


def run(settings):
    for trained in workloads(settings):
        series, given_back, seen, kept, nodes = sleeps_of(trained, settings)
        made = case(trained.title, "time of a pool's sleep", 1, SUSPEND, series, unit="ms",
                    notes=[f"{given_back / MIB:.0f} MiB given back by suspend(), {seen / MIB:.0f} MiB as the driver sees it; "
                           f"{kept / MIB:.0f} MiB of gradients kept on the host; {nodes} nodes"])
        if settings.device != "cpu":
            share = seen / given_back
            require(made, "given back as the driver sees it: at least 0.95 of the pool", share, 0.95, share >= 0.95)
        to_host, to_device, mapping = (median(series[name]) for name in (TO_HOST, TO_DEVICE, ASKED))
        limit = to_host / 0.8 + 20
        require(made, "suspend, ms: at most the copy at 80 % of its speed and 20 ms", median(series[SUSPEND]), limit,
                median(series[SUSPEND]) <= limit)
        limit = to_device / 0.8 + mapping + 2
        require(made, "resume, ms: at most the copy at 80 % of its speed, the cudaMalloc and 2 ms", median(series[RESUME]), limit,
                median(series[RESUME]) <= limit)
        faster = median(series[AGAIN]) / (median(series[SUSPEND]) + median(series[RESUME]))
        require(made, "suspend and resume: at least 5x as fast as capturing again", faster, 5, faster >= 5)
        yield made
