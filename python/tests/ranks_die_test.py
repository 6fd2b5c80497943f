"""A rank dies while others replay what waits for it: they end with a sentence in the time that their process group was made with."""

import datetime
import os
import signal
import time

import pianola
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2
TIMEOUT = 6  # of the process group, in seconds

if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("torch has no gloo", allow_module_level=True)


def run_rank(rank, folder, kind):
    torch.set_num_threads(1)
    device = torch.device("cuda", rank) if kind == "cuda" else torch.device("cpu")
    if kind == "cuda":
        torch.cuda.set_device(device)
    store = dist.FileStore(os.path.join(folder, "store"), RANKS)
    backend = "nccl" if kind == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=RANKS, timeout=datetime.timedelta(seconds=TIMEOUT))

    def step(x):
        y = x * 2
        dist.all_reduce(y)
        return y + 1

    graphed, x = pianola.graphed(step), torch.ones(8, device=device)
    for _ in range(8):
        graphed(x).sum().item()
    if sum(one.replays for one in graphed.info().signatures) < 4:
        raise RuntimeError(str(graphed.info()))
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begin, error = time.monotonic(), ""
    try:
        for _ in range(3):
            graphed(x).sum().item()
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    with open(os.path.join(folder, "found"), "w") as file:
        file.write(f"{time.monotonic() - begin}\n{error}")
    os._exit(0)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_rank_that_is_killed_ends_the_others_with_a_sentence(kind, tmp_path):
    if kind == "cuda" and (torch.cuda.device_count() < RANKS or not dist.is_nccl_available()):
        pytest.skip(f"wants {RANKS} GPUs and NCCL")
    context = mp.get_context("spawn")
    ranks = [context.Process(target=run_rank, args=(rank, str(tmp_path), kind)) for rank in range(RANKS)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join(60)
    hangs = [one.is_alive() for one in ranks]
    for one in ranks:
        one.kill()
    assert hangs == [False, False]
    assert ranks[1].exitcode == -signal.SIGKILL
    seconds, _, error = (tmp_path / "found").read_text().partition("\n")
    assert float(seconds) < TIMEOUT + 10
    if kind == "cuda":
        assert "rank 0 waits in a replay" in error and "1 x c10d::allreduce_, the first at " in error, error
        assert "rank 1 says nothing: it has ended" in error
    else:
        assert error.startswith("CommunicationError: c10d::allreduce_ of a replay failed: ") and "has ended" in error, error
