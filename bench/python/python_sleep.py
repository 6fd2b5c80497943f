"""Pools that sleep: what a training step's graph gives back to the driver, and how long that and its way back take, against a copy of
what is kept by pinned memory, against asking the driver for as many bytes, against dropping the graph and capturing it again, and against
torch_memory_saver where it is installed.

The driver clears memory that was given back. Who asks for memory meanwhile waits, and copies are slower: so each pool sleeps for a while,
as long as lies before the driver is asked for as many bytes; a resume at once is told beside it, and the same from the driver."""

import gc
import importlib.util
import os
import sys
import time
from pathlib import Path

import pianola
import torch
from measuring import case, require, synchronize
from python_memory import MIB, Trained, clean, step_of
from python_models import LanguageModel
from worker_process import WorkerError, WorkerProcess

SUSPEND, RESUME, TO_HOST, TO_DEVICE, ASKED, AGAIN = (
    "suspend", "resume", "copy of what is kept, to the host", "copy of it, to the device", "cudaMalloc of as many bytes",
    "reset and capture again, with one run to warm up")
AT_ONCE, ASKED_AT_ONCE = "resume at once", "cudaMalloc of as many bytes and the copy, at once"
SUSPEND_WITHOUT, RESUME_WITHOUT = "suspend(keep_executables=False)", "resume, executables made again"
ROUNDS, ASLEEP_S = 8, 0.2
SAVER = "torch_memory_saver"
SAVER_PROGRAM = Path(__file__).with_name("paused_training.py")
SAVER_WAYS = {  # it keeps all that a graph's pool holds, or nothing
    "all kept": {"keep": True, "retain": False},
    "all kept, in memory that it retains": {"keep": True, "retain": True},
    "nothing kept": {"keep": False, "retain": False},
}
ANSWER_TIMEOUT_S = 300


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
    """Times of a request for so many bytes, a while after as many were given back."""
    times = []
    for _ in range(ROUNDS):
        clean(device)
        time.sleep(ASLEEP_S)
        times.append(milliseconds(lambda: torch.empty(count, dtype=torch.uint8, device=device)))
    clean(device)
    return times


def asked_at_once(count, kept, device):
    """Times of a request for so many bytes right after as many were given back, and of a copy of those that are kept into them."""
    on_host, times = torch.empty(kept, dtype=torch.uint8, pin_memory=device != "cpu"), []

    def ask():
        torch.empty(count, dtype=torch.uint8, device=device)[:kept].copy_(on_host, non_blocking=True)

    for _ in range(ROUNDS):
        clean(device)
        times.append(milliseconds(ask))
    clean(device)
    return times


def sleep_for(pool, seconds, series, names, **options):
    """Adds the times of a suspend and of its resume."""
    suspend, resume = names
    series.setdefault(suspend, []).append(milliseconds(lambda: pool.suspend(**options)))
    time.sleep(seconds)
    series.setdefault(resume, []).append(milliseconds(pool.resume))


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
    series = {}
    for _ in range(settings.some(ROUNDS)):
        graph.replay()
        sleep_for(pool, ASLEEP_S, series, (SUSPEND, RESUME))
        graph.replay()
        sleep_for(pool, ASLEEP_S, series, (SUSPEND_WITHOUT, RESUME_WITHOUT), keep_executables=False)
        graph.replay()
        sleep_for(pool, 0, series, ("", AT_ONCE))
    del series[""]
    nodes = graph.info().nodes
    kept = sum(parameter.grad.nbytes for parameter in held_gradients())
    series[TO_HOST], series[TO_DEVICE] = copies(kept, device)
    series[ASKED] = asked(max(given_back, 1), device)
    series[ASKED_AT_ONCE] = asked_at_once(max(given_back, kept), kept, device)

    def again():
        graph.reset()
        graph.capture(step, warmup=1, **how)

    series[AGAIN] = [milliseconds(again) for _ in range(settings.some(3))]
    return series, given_back, seen, kept, nodes


def held_gradients():
    gc.collect()
    return [one for one in gc.get_objects() if isinstance(one, torch.nn.Parameter) and one.grad is not None]


def folder_of(library):
    """Of one that this process has loaded; "": it has not."""
    files = (line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines())
    return next((str(Path(file).parent) for file in files if library in Path(file).name), "")


def pauses(settings):
    """(times by torch_memory_saver, notes). It is preloaded into a process of its own, before libcudart, which the loader must find."""
    if importlib.util.find_spec(SAVER) is None:
        return {}, [f"{SAVER} is not installed: its times are left out"]
    if settings.device == "cpu":
        return {}, [f"{SAVER} is for GPUs: its times are left out"]
    from torch_memory_saver import configure_subprocess

    command = [sys.executable, str(SAVER_PROGRAM), *(["--quick"] if settings.quick else [])]
    folders = folder_of("libcudart.so"), os.environ.get("LD_LIBRARY_PATH")
    series, notes = {}, [f"{SAVER}: with the backward pass on the thread that captures, whose allocations alone it sees"]
    try:
        with configure_subprocess():
            worker = WorkerProcess(SAVER, command, ANSWER_TIMEOUT_S, {"LD_LIBRARY_PATH": ":".join(filter(None, folders))})
        with worker:
            for way, request in SAVER_WAYS.items():
                found = worker.ask(**request)
                series |= {f"{SAVER}, {way}: {call}": found[call] for call in ("pause", "resume")}
                notes.append(f"{SAVER}, {way}: {found['given_back'] / MIB:.0f} MiB as the driver sees it, of a pool of "
                             f"{found['pool'] / MIB:.0f} MiB")
    except WorkerError as error:
        notes.append(str(error))
    return series, notes


def median(times):
    return sorted(times)[len(times) // 2]


def run(settings):
    for trained in workloads(settings):
        series, given_back, seen, kept, nodes = sleeps_of(trained, settings)
        clean(settings.device)
        of_saver, notes = pauses(settings)
        made = case(trained.title, "time of a pool's sleep", 1, SUSPEND, series | of_saver, unit="ms",
                    notes=[f"{given_back / MIB:.0f} MiB given back by suspend(), {seen / MIB:.0f} MiB as the driver sees it; "
                           f"{kept / MIB:.0f} MiB of gradients kept on the host; {nodes} nodes", *notes])
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
        more = median(series[RESUME_WITHOUT]) - median(series[RESUME])
        limit = 10 * nodes / 1000
        require(made, f"{RESUME_WITHOUT}, ms more: at most 10 for 1000 nodes", more, limit, more <= limit)
        faster = median(series[AGAIN]) / (median(series[SUSPEND]) + median(series[RESUME]))
        require(made, "suspend and resume: at least 5x as fast as capturing again", faster, 5, faster >= 5)
        yield made
