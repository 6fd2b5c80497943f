"""A training step in a CUDA graph whose memory torch_memory_saver pauses and resumes: a worker of bench/python/worker_process.py, which
answers each request with milliseconds and bytes. Its hooks stand before cudaMalloc, so it is begun with them in LD_PRELOAD:
bench/python/python_sleep.py does that."""

import argparse
import json
import sys
import time

import torch
from python_memory import WARMUP, clean, in_pool, step_of
from python_sleep import ASLEEP_S, free_bytes, held_gradients, milliseconds, workloads
from torch_memory_saver import torch_memory_saver as saver

DEVICE = "cuda"
ROUNDS = 3  # each may ask for as much pinned memory as the pool has


class Settings:
    device = DEVICE

    def __init__(self, quick):
        self.quick, self.notes = quick, []

    def some(self, iterations):
        return min(iterations, 3) if self.quick else iterations


def captured(step, keep):
    """In one thread with its backward pass: allocations of others are not hooked, and would stay."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.autograd.set_multithreading_enabled(False):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARMUP):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        with saver.cuda_graph(graph, stream=stream, enable_cpu_backup=keep):
            step()
    return graph


def pauses_of(trained, settings, keep, retain):
    """@param keep  Contents, on the host. @param retain  The memory there, from one pause to the next."""
    saver.retain_cpu_backup = retain
    step = step_of(trained, DEVICE)  # has the parameters, which replays read
    graph = captured(step, keep)
    clean(DEVICE)
    pool, given_back, times = in_pool(graph.pool()), [], {"pause": [], "resume": []}
    for _ in range(1 + ROUNDS):
        graph.replay()
        before = [parameter.grad.clone() for parameter in held_gradients()] if keep and not given_back else []
        free = free_bytes(DEVICE)
        times["pause"].append(milliseconds(saver.pause))
        given_back.append(free_bytes(DEVICE) - free)
        time.sleep(ASLEEP_S)
        times["resume"].append(milliseconds(saver.resume))
        if before and not all(torch.equal(parameter.grad, one) for parameter, one in zip(held_gradients(), before, strict=True)):
            raise RuntimeError("a gradient is not as it was before the pause")
        del before
    return {name: taken[1:] for name, taken in times.items()} | {"pool": pool, "given_back": min(given_back)}


def answer(request, settings):
    try:
        (trained,) = workloads(settings)
        found = pauses_of(trained, settings, **request)
        clean(DEVICE)
        return found
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main(arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    settings = Settings(parser.parse_args(arguments).quick)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line), settings)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
