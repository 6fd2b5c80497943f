"""What the executables of a pool's graphs take, and what a replay takes, with one for each graph and with those that the graphs share
(share_executables): inference of GPT-2 at 16 lengths, and its layers, each a graph. Bytes are of processes of their own, since the driver
keeps what ended executables had, and gives it to later ones."""

import concurrent.futures
import functools
import multiprocessing

from python_buckets import Inference, by_deterministic_algorithms, by_pianola, check, workloads  # first: it sets what torch reads

import torch  # noqa: E402
from measuring import alternate, case, require_ratio, series  # noqa: E402
from python_memory import MIB, clean  # noqa: E402

OWN, SHARED = "an executable each", "share_executables"
ITSELF, ANOTHER = "a replay that follows itself", "a replay that follows another's"
REPLAYS, BURST = 40, 20


class Layers(Inference):
    """Its layers, one after the other, in place of lengths: each gives the next one its input."""

    def __init__(self, config, device, batch, lengths):
        super().__init__(config, device, batch, lengths)
        self.mask = self.masks[max(lengths)]
        self.hidden = torch.randn(batch, max(lengths), config.n_embd, generator=torch.Generator().manual_seed(3)).to(device)
        self.model.register_buffer("hidden", self.hidden)  # of the state that is put back

    @torch.no_grad()
    def step(self, layer):
        result = self.model.transformer.h[layer](self.hidden, attention_mask=self.mask)
        self.hidden.copy_(result[0] if isinstance(result, tuple) else result)

    def outcome(self):
        return [self.hidden]


def pair_of(graphs):
    """Two that share an executable, the last ones; the last two where none do."""
    for last in reversed(graphs):
        for other in reversed(graphs):
            if other is not last and last.raw_executable() == other.raw_executable():
                return last, other
    return graphs[-1], graphs[-2]


def replays_of(settings, made):
    """{(kind of replay, how): {"host", "wall"}}, us a replay."""
    one, other = pair_of(list(made[SHARED][0].values()))
    names = {id(graph): name for name, graph in made[SHARED][0].items()}
    contenders = {}
    for how, (graphs, _) in made.items():
        first, second = graphs[names[id(one)]], graphs[names[id(other)]]

        def itself(graph=first):
            graph.replay()
            graph.replay()

        def another(graph=first, next_one=second):
            graph.replay()
            next_one.replay()

        contenders[f"{ITSELF}, {how}"], contenders[f"{ANOTHER}, {how}"] = itself, another
    return alternate(contenders, settings.some(REPLAYS), settings.some(BURST), settings.rounds)


def bytes_taken(make, device, keys, share_executables):
    """Of the executables, on the device and on the host."""
    graphs, _ = by_pianola(make(), device, keys, share_executables=share_executables)
    taken = next(iter(graphs.values())).memory().pool.executables
    return taken.device, taken.host


def in_a_process_of_its_own(function, *arguments):
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(function, *arguments).result()


def bytes_of(make, device, keys):
    """{where: {how: MiB}}"""
    taken = {how: in_a_process_of_its_own(bytes_taken, make, device, keys, how == SHARED) for how in (OWN, SHARED)}
    return {where: {how: [of[i] / MIB] for how, of in taken.items()} for i, where in enumerate(("device", "host"))}


def executables_of(settings, title, make, keys):
    """Cases: what they take, and what replays take."""
    made, works = {}, {}
    for how in (OWN, SHARED):
        works[how] = make()
        made[how] = by_pianola(works[how], settings.device, keys, share_executables=how == SHARED)
        check(works[how], made[how][0], f"{title}, {how}")
    sharing = sum(graph.info().shares_executable for graph in made[SHARED][0].values())
    notes = [f"{sharing} of {len(keys)} graphs share executables", "each replay equals the eager step bit by bit, by deterministic algorithms"]
    samples = replays_of(settings, made)
    for kind in ("host", "wall"):
        times = {name: [us / 2 for us in taken] for name, taken in series(samples, kind).items()}  # of one of the two replays
        told = case(title, f"{kind} time of a replay", settings.some(REPLAYS), f"{ITSELF}, {OWN}", times, notes=notes)
        if settings.device != "cpu":
            require_ratio(told, f"{ITSELF}, {SHARED}", OWN, times[f"{ITSELF}, {SHARED}"], times[f"{ITSELF}, {OWN}"], 1.02)
        yield told
    del made, works
    clean(settings.device)
    for where, samples in bytes_of(make, settings.device, keys).items():
        if all(taken != [0] for taken in samples.values()):
            yield case(title, f"executables, bytes of the {where}", 1, OWN, samples, unit="MiB", notes=notes)
        else:
            settings.notes.append(f"{title}: nothing to see of executables on the {where}: {samples}")


def cases(settings):
    (title, make, lengths), *_ = workloads(settings)
    yield from executables_of(settings, title, make, lengths)
    layers = make.args[0].n_layer
    yield from executables_of(settings, f"{layers} layers of GPT-2, each a graph", functools.partial(Layers, *make.args), list(range(layers)))


def run(settings):
    return by_deterministic_algorithms(settings, cases)
