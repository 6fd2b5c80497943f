"""A rank dies, fails or leaves out what others wait for: those that live end with a sentence in the time that their process group was
made with."""

import datetime
import os
import signal
import threading
import time

import pianola
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2
TIMEOUT = {"cpu": 4, "cuda": 6}  # of the process group, in seconds
SLACK = 10  # of a machine that does other things, too
START = 60  # until all ranks run
WARMUP = 3

if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("torch has no gloo", allow_module_level=True)


# --- What goes wrong; rank 1 begins it ---


class Rank:
    def __init__(self, number, folder, kind):
        self.number, self.folder, self.kind = number, folder, kind
        self.device = torch.device("cuda", number) if kind == "cuda" else torch.device("cpu")
        self.fails = False

    def reduced(self, x, spoil=lambda: None):
        """What is graphed."""
        spoil()
        y = x * 2
        dist.all_reduce(y)
        return y + 1

    def replaying(self, step, calls=8, **options):
        """A function that has been replayed on all ranks."""
        graphed = pianola.graphed(step, warmup=WARMUP, **options)
        for _ in range(calls):
            graphed(torch.ones(8, device=self.device)).sum().item()
        if sum(one.replays for one in graphed.info().signatures) < 3:
            raise RuntimeError(str(graphed.info()))
        dist.barrier()
        return graphed

    def goes_wrong(self):
        """Now: times to the message are counted from here."""
        with open(os.path.join(self.folder, "begin"), "w") as file:
            file.write(str(time.time()))

    def dies(self):
        if self.number == 1:
            self.goes_wrong()
            os.kill(os.getpid(), signal.SIGKILL)

    def waits(self):
        """Is there, and communicates no more: nothing but the time tells the others."""
        time.sleep(TIMEOUT[self.kind] + 3)


def killed_before_the_capture(rank):
    graphed, x = pianola.graphed(rank.reduced, warmup=WARMUP), torch.ones(8, device=rank.device)
    for number in range(8):
        if number == 2:
            rank.dies()
        graphed(x).sum().item()


def killed_while_it_captures(rank):
    def step(x):
        return rank.reduced(x, lambda: rank.dies() if pianola.is_current_stream_capturing() else None)

    rank.replaying(step)


def killed_between_replays(rank):
    graphed, x = rank.replaying(rank.reduced), torch.ones(8, device=rank.device)
    rank.dies()
    for _ in range(3):
        graphed(x).sum().item()


def killed_in_a_replay(rank):
    """Nearly all of the time is a replay's."""

    def step(x):
        for _ in range(300):
            x = x / 2
            dist.all_reduce(x)
        return x

    graphed, x = rank.replaying(step), torch.ones(8, device=rank.device)
    threading.Timer(0.5, rank.dies).start()
    runs = time.monotonic() + TIMEOUT[rank.kind] + SLACK
    while time.monotonic() < runs:
        graphed(x).sum().item()


def raises_while_it_captures(rank):
    """And is there afterwards."""

    def fail():
        if rank.number == 1 and pianola.is_current_stream_capturing():
            rank.goes_wrong()
            rank.fails = True
        if rank.fails:  # also in the eager run that follows
            raise ValueError("this rank's data is bad")

    rank.replaying(lambda x: rank.reduced(x, fail))


def leaves_out_a_collective(rank):
    """In what it replays: from some call on, or the others would wait in the capture already."""

    def step(x, reduces):
        y = rank.reduced(x)
        if reduces:
            dist.all_reduce(y)
        return y

    graphed, x = pianola.graphed(step, warmup=WARMUP), torch.ones(8, device=rank.device)
    for _ in range(8):
        graphed(x, True).sum().item()
    if rank.number == 1:
        rank.goes_wrong()
    for _ in range(8):
        graphed(x, rank.number == 0).sum().item()
    rank.waits()


def leaves_out_a_replay(rank):
    graphed, x = rank.replaying(rank.reduced), torch.ones(8, device=rank.device)
    if rank.number == 1:
        rank.goes_wrong()
        rank.waits()
    graphed(x).sum().item()


def ends_its_process_group(rank):
    """On all ranks, as programs do, and then goes on."""
    graphed, x = rank.replaying(rank.reduced), torch.ones(8, device=rank.device)
    if rank.number == 1:
        rank.goes_wrong()
    dist.destroy_process_group()
    graphed(x)


def ends_the_process_group_of_a_graph(rank):
    x, graph = torch.ones(8, device=rank.device), pianola.Graph(rank.device)
    graph.capture(lambda: rank.reduced(x), warmup=1)
    graph.replay()
    dist.barrier()
    if rank.number == 1:
        rank.goes_wrong()
    dist.destroy_process_group()
    graph.replay()


def ends_its_process_group_alone(rank):
    """The others replay."""
    graphed, x = rank.replaying(rank.reduced), torch.ones(8, device=rank.device)
    if rank.number == 1:
        rank.goes_wrong()
        dist.destroy_process_group()
    graphed(x).sum().item()


# For each: what the ranks that live say, by number.
_ENDED = ("CommunicationError: c10d::allreduce_ of a replay failed: ", "has ended")
WAYS = {
    killed_before_the_capture: {0: ("RuntimeError: ", "peer")},
    killed_while_it_captures: {0: ("UsageError: the capture failed after the step had communicated",)},
    killed_between_replays: {0: _ENDED},
    killed_in_a_replay: {0: _ENDED},
    raises_while_it_captures: {0: ("UsageError: the capture failed after the step had communicated",), 1: ("ValueError: this rank's data is bad",)},
    leaves_out_a_collective: {0: ("CommunicationError: ",)},
    leaves_out_a_replay: {0: ("CommunicationError: c10d::allreduce_ of a replay failed: ",)},
    ends_its_process_group: {0: ("ValueError: Default process group has not been initialized",), 1: ("ValueError: Default process group",)},
    ends_the_process_group_of_a_graph: {0: ("UsageError: ", "holds no capture"), 1: ("UsageError: ", "holds no capture")},
    ends_its_process_group_alone: {0: ("CommunicationError: c10d::allreduce_ of a replay failed: ",), 1: ("ValueError: Default process group",)},
}
DIE = [way for way in WAYS if way.__name__.startswith("killed")]
WAIT = [raises_while_it_captures, leaves_out_a_collective, leaves_out_a_replay]


# --- Ranks ---


def meet(store, number):
    """Before the group's timeout begins: on a busy machine one process starts long after another."""
    store.set(f"started {number}", "")
    store.wait([f"started {other}" for other in range(RANKS)], datetime.timedelta(seconds=START))


def run_rank(number, folder, kind, way):
    torch.set_num_threads(1)
    if kind == "cuda":
        torch.cuda.set_device(number)
    store = dist.FileStore(os.path.join(folder, "store"), RANKS)
    meet(store, number)
    backend, timeout = "nccl" if kind == "cuda" else "gloo", datetime.timedelta(seconds=TIMEOUT[kind])
    dist.init_process_group(backend, store=store, rank=number, world_size=RANKS, timeout=timeout)
    error = ""
    try:
        way(Rank(number, folder, kind))
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    with open(os.path.join(folder, f"said by {number}"), "w") as file:
        file.write(f"{time.time()}\n{error}")
    if way is raises_while_it_captures and number == 1:
        Rank(number, folder, kind).waits()
    os._exit(0)


def start(context, folder, kind, way):
    folder.mkdir()
    ranks = [context.Process(target=run_rank, args=(number, str(folder), kind, way)) for number in range(RANKS)]
    for one in ranks:
        one.start()
    return ranks


def ended(ranks, seconds):
    """The exit codes; None of those that hang."""
    limit = time.monotonic() + seconds
    for one in ranks:
        one.join(max(0.0, limit - time.monotonic()))
    codes = [one.exitcode for one in ranks]
    for one in ranks:
        one.kill()
    return codes


def said_by(folder, rank):
    """How many seconds after it went wrong, and what."""
    at, _, text = (folder / f"said by {rank}").read_text().partition("\n")
    begin = folder / "begin"
    assert begin.exists(), f"it failed before anything went wrong: {text}"
    return float(at) - float(begin.read_text()), text


def check(folder, kind, way, codes, expected):
    said = {one.name: one.read_text() for one in folder.glob("said by *")}
    assert None not in codes, (codes, "a rank hangs", said)
    assert (codes[1] == -signal.SIGKILL) == (way in DIE), (codes, said)
    for rank, words in expected.items():
        seconds, text = said_by(folder, rank)
        print(f"{way.__name__}: rank {rank} after {seconds:.2f} s: {text}")  # pytest -s shows the table
        assert seconds < TIMEOUT[kind] + SLACK, text
        assert all(word in text for word in words), text


@pytest.fixture(scope="module")
def by_gloo(tmp_path_factory):
    """Some at once: they wait most of the time."""
    context = mp.get_context("forkserver")  # imports torch once
    context.set_forkserver_preload(["pianola", __name__])
    folder, found = tmp_path_factory.mktemp("ways"), {}
    others = [way for way in WAYS if way not in DIE + WAIT]
    for some in (DIE, others, WAIT):
        ranks = {way: start(context, folder / way.__name__, "cpu", way) for way in some}
        found.update({way: (folder / way.__name__, ended(each, START)) for way, each in ranks.items()})
    return found


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_every_rank_that_lives_ends_with_a_sentence(way, by_gloo):
    folder, codes = by_gloo[way]
    check(folder, "cpu", way, codes, WAYS[way])


def test_a_rank_that_is_killed_ends_the_others_on_gpus(tmp_path):
    if torch.cuda.device_count() < RANKS or not dist.is_nccl_available():
        pytest.skip(f"wants {RANKS} GPUs and NCCL")
    words = "rank 0 waits in a replay", "1 x c10d::allreduce_, the first at ", "rank 1 says nothing: it has ended"
    codes = ended(start(mp.get_context("spawn"), tmp_path / "killed", "cuda", killed_between_replays), 60)
    check(tmp_path / "killed", "cuda", killed_between_replays, codes, {0: words})
