"""Runs cases on two ranks or more, by Gloo on the CPU and by NCCL on GPUs: one process per rank runs every case of a module, and each
test looks at what they found."""

import datetime
import importlib
import os
import pickle
import traceback

import pianola
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

RANKS, STEPS = 2, 16
WARMUP = {"cpu": 4, "cuda": 12}  # calls that may go by before a step with DistributedDataParallel replays
_devices = [torch.device("cpu")]  # the last is this rank's


def device():
    """Of this rank."""
    return _devices[-1]


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(device())


def batch(step):
    """Another one on each rank."""
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * step + dist.get_rank())).to(device())


def refusal(work):
    try:
        work()
    except pianola.Error as error:
        return (type(error).__name__, str(error))
    return None


class Lanes:
    """What is told of a graph's branches, as it can be handed to another process."""

    def __init__(self, info):
        self.rebuilt, self.reason, self.untimed = info.rebuilt, info.reason, info.untimed
        self.lanes, self.proved_pairs = info.lanes, info.proved_pairs

    def __repr__(self):
        return str(vars(self))


def run_rank(rank, module, folder, kind, ranks=RANKS):
    """@param module  The name of the one whose CASES are run."""
    torch.set_num_threads(1)
    if kind == "cuda":
        _devices.append(torch.device("cuda", rank))
        torch.cuda.set_device(device())
    cases = importlib.import_module(module)
    store = dist.FileStore(os.path.join(folder, "store"), ranks)
    backend = "nccl" if kind == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=datetime.timedelta(seconds=60))
    results = {}
    for case in cases.CASES:
        if kind == "cuda" and case in cases.ON_THE_CPU:
            continue
        try:
            results[case.__name__] = case()
        except Exception:
            results[case.__name__] = traceback.format_exc()
        with open(os.path.join(folder, f"{rank}.pickle"), "wb") as file:
            pickle.dump(results, file)
    dist.destroy_process_group()
    if kind == "cpu":  # where Python ends, ~ProcessGroupGloo may wait for a thread that waits for the GIL
        os._exit(0)


def found_by_ranks(module, kind, tmp_path_factory, ranks=RANKS):
    """What each rank found, by case. @param module  The name of the test's."""
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("torch has no gloo")
    if kind == "cuda" and (torch.cuda.device_count() < ranks or not dist.is_nccl_available()):
        pytest.skip(f"wants {ranks} GPUs and NCCL")
    folder = str(tmp_path_factory.mktemp("ranks"))
    mp.spawn(run_rank, (module, folder, kind, ranks), nprocs=ranks)
    found = []
    for rank in range(ranks):
        with open(os.path.join(folder, f"{rank}.pickle"), "rb") as file:
            found.append(pickle.load(file) | {"device": kind})
    return found


def of_both(ranks, case):
    if case.__name__ not in ranks[0]:
        pytest.skip("on the CPU alone")
    for found in ranks:
        result = found[case.__name__]
        assert not isinstance(result, str), result
    return [found[case.__name__] for found in ranks]


def refused(result, kind, *words, rule="PG1106"):
    assert result is not None, "not refused"
    assert result[0] == kind and (rule is None or f"[{rule}]" in result[1]), result
    for each in words:
        assert each in result[1], result[1]
