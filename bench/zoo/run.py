"""Runs the zoo: each case in a process of its own, its contenders in turn.

    bench/zoo/run.py [--device cpu|cuda] [--size small|full] [--case NAME] [--calls N] [--jobs N] [--json FILE] [--missing] [FILTER]

Wants `import pianola` to work, as bench/python/main.py does, and torchvision, timm, transformers and peft. A contender is first run
--calls times from the same seeds as eager, and all that it returned and left is compared bit by bit, with a second run of eager where
the first, the process's first, differs from it; then those that were right are timed in turn. On the CPU the tape is what replays,
and nothing is timed.

With --jobs, cases run side by side, on all GPUs in turn; where one is timed, nothing else runs on its GPU.

FILE has the form of bench/results/README.md; each case has a "zoo" besides. Cases that it has are replaced, others stay, so that
several runs make one file; with --missing, those that it has are not run. bench/zoo/table.py makes the table of the docs from it.
"""

import argparse
import contextlib
import fcntl
import gc
import importlib
import json
import logging
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic algorithms want it, before CUDA starts
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "python")]

import cases  # noqa: E402
import torch  # noqa: E402

EAGER = "eager"
PIANOLA = "@pianola.graphed"
GRAPH = "torch.cuda.graph"
CALLABLES = "torch.cuda.make_graphed_callables"
COMPILE = 'torch.compile(mode="reduce-overhead")'
AUTO = '@pianola.graphed(compile="auto")'
OPTIONS = {PIANOLA: {}, AUTO: {"compile": "auto"}}  # of graphed
FUSED = (COMPILE, AUTO)  # whose kernels round differently
MOST_UNSETTLED = 300  # calls, until nothing is captured any more, and AUTO has taken one
QUIET = 25  # calls without a new graph
ITERATIONS, BURST, ROUNDS = 20, 10, 5


class Log(logging.Handler):
    """What Pianola says."""

    def __init__(self):
        super().__init__()
        self.sentences = []

    def emit(self, record):
        self.sentences.append(record.getMessage())


class Contender:
    """One way to run a case, from the same seeds as all others."""

    def __init__(self, way, case, settings):
        self.way = way
        self.graphed = []  # functions that pianola.graphed made
        self.error = ""
        self.results = []
        self.turns = 0
        self.trace = ""
        self.memory = None  # peak, less what others hold
        self.on_cuda = settings.device == "cuda"
        try:
            self._build(case, settings)
            self._run(settings.calls)
            self.memory = torch.cuda.max_memory_allocated() - self.before if self.on_cuda else None
        except Exception as error:  # whatever it is: the others still run
            self.error = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
            self.trace = traceback.format_exc()

    def _build(self, case, settings):
        from leaves import seed
        from program import Size

        builder = getattr(importlib.import_module(case.family), case.name)
        decorator = self._decorator(settings)
        samples = sample_inputs(builder(settings.device, Size(settings.size == "full"), decorator)) if self.way == CALLABLES else ()
        self.before = self._begin_memory()
        seed(0)
        self.program = builder(settings.device, Size(settings.size == "full"), decorator)
        if self.way == GRAPH:
            from by_hand import make_capturable

            make_capturable(self.program.state)
            decorator.state = self.program.state
        if self.way == CALLABLES:
            torch.cuda.make_graphed_callables(self.program.model, samples)
        if self.way == COMPILE:
            self.program.model.compile(mode="reduce-overhead")
        seed(1)
        self.loop = self.program.loop()

    def _begin_memory(self):
        """What is held now."""
        if not self.on_cuda:
            return 0
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()

    def _decorator(self, settings):
        if self.way in OPTIONS:
            return self._graph
        if self.way == GRAPH:
            from by_hand import ByHand

            return ByHand(settings.device)
        return lambda target: target

    def _graph(self, target):
        import pianola

        made = pianola.graphed(target, **OPTIONS[self.way])
        self.graphed.append(made.forward if isinstance(target, torch.nn.Module) else made)
        return made

    def _run(self, calls):
        from leaves import digests, generators

        for _ in range(calls):
            self.results.append(digests(self.turn()))
        self.generators = generators()
        self.left = digests(list(self.program.state))

    def turn(self):
        self.turns += 1
        return next(self.loop)

    def said_of_compiling(self):
        return [told for function in each_of(self.graphed) for told in function.info().compiled]

    def settle(self):
        """Goes on until it captures no more, and has chosen between compiled and plain graphs."""
        graphs, since = self.graphs(), self.turns
        while graphs and self.turns < MOST_UNSETTLED and (self.turns - since < QUIET or self.is_undecided()):
            self.turn()
            if self.graphs() != graphs:
                graphs, since = self.graphs(), self.turns

    def graphs(self):
        return sum(one.graphs for function in each_of(self.graphed) for one in function.info().signatures)

    def is_undecided(self):
        return self.way == AUTO and not self.said_of_compiling()

    def difference_from(self, eager):
        """What differs from eager, in words; "" where nothing does."""
        from leaves import count_differences, first_difference

        if self.error:
            return self.error
        for i, (result, expected) in enumerate(zip(self.results, eager.results)):
            difference = first_difference(result, expected)
            if difference:
                return f"call {i + 1} of {len(self.results)} returns something else: {difference}"
        difference = first_difference(self.left, eager.left)
        if difference:
            return f"{count_differences(self.left, eager.left)} of {len(eager.left)} values left differ, first {difference}"
        difference = first_difference(self.generators, eager.generators)
        return f"other random numbers were drawn: {difference}" if difference else ""


def sample_inputs(program):
    """What make_graphed_callables wants: what the model is called with first, of a program that is not used for more."""
    if program.model is None:
        raise RuntimeError("the step has no one model")
    seen = []
    with program.model.register_forward_pre_hook(lambda module, args, kwargs: seen.append((args, kwargs)), with_kwargs=True):
        next(program.loop())
    if not seen:
        raise RuntimeError("the step does not call the model itself")
    (args, kwargs), *_ = seen
    if kwargs or not all(isinstance(arg, torch.Tensor) for arg in args):
        raise RuntimeError("the model is called with more than tensors in their order")
    return tuple(arg.detach().clone().requires_grad_(arg.requires_grad) for arg in args)


def each_of(graphed):
    """A method has graphs per object."""
    return [one for function in graphed for one in (function, *function._owned.values())]


def how_it_replays(graphed, calls):
    known = [one for function in each_of(graphed) for one in function.info().signatures]
    captured = [one for one in known if one.graphs]
    replayed = sum(one.replays for one in known)
    made = max(calls, replayed + sum(one.eager_calls for one in known))
    kinds = sorted({one.kind for one in captured})
    how = f"{sum(one.graphs for one in captured)} graphs ({', '.join(kinds)})" if captured else "eager"
    return {"how": how, "replayed": replayed, "calls": made, "signatures": len(known),
            "recaptures": sum(one.recaptures for one in known), "misses": sum(one.misses for one in known),
            "lanes": sorted({str(branch.lanes) if branch.rebuilt else branch.reason for one in captured for branch in one.branches}),
            "reasons": list(dict.fromkeys(one.reason for one in known if one.reason)),
            "states": [one.state for one in known]}


def ways_of(case, settings):
    ways = [EAGER, PIANOLA]
    if settings.device == "cuda":
        ways += [GRAPH, CALLABLES] + (list(FUSED) if cases.COMPILE in case.traits else [])
    return [way for way in ways if way in (EAGER, PIANOLA) or not settings.alone and way not in settings.without]


@contextlib.contextmanager
def turn(settings, kind):
    """On the GPU: of a case that is timed (fcntl.LOCK_EX), or of all others (fcntl.LOCK_SH)."""
    if settings.turns is None:
        yield
        return
    with settings.turns.open("a") as file:
        fcntl.flock(file, kind)
        yield


def run_contenders(case, settings):
    """({way: contender}, {way: how it differs from eager})."""
    contenders, differences = {}, {}
    for way in ways_of(case, settings):
        contenders[way] = Contender(way, case, settings)
        differences[way] = contenders[way].difference_from(contenders[EAGER])
        if contenders[way].error and way not in (EAGER, PIANOLA):
            break  # a capture that failed may leave torch's generators and allocator in it: the others want another process
    return contenders, differences


def run_case(case, settings):
    """One row: a case of bench/results/README.md, with what the zoo asks."""
    import measuring

    log = Log()
    logging.getLogger("pianola").addHandler(log)
    with turn(settings, fcntl.LOCK_SH):
        contenders, differences = run_contenders(case, settings)
    way = list(contenders)[-1]
    eager, ours = contenders[EAGER], contenders[PIANOLA]
    if eager.error:
        raise RuntimeError(f"eager itself failed\n{eager.trace}")
    zoo = {"family": case.family, "kind": case.kind, "source": case.source, "traits": list(case.traits),
           "device": settings.device, "size": settings.size, **how_it_replays(ours.graphed, settings.calls),
           "said": log.sentences, "differs": {way: text for way, text in differences.items() if way != EAGER},
           "memory": {way: contender.memory for way, contender in contenders.items()}}
    if ours.error:
        zoo["trace"] = ours.trace
    elif differences[PIANOLA]:
        # The first run of a process may compute what no later one does: ours was a later one.
        again = Contender(EAGER, case, settings)
        if again.error:
            raise RuntimeError(f"eager itself failed when it ran again\n{again.trace}")
        zoo["eager_differs_from_itself"] = again.difference_from(eager)
        differences = {way: contender.difference_from(again) for way, contender in contenders.items()}
        zoo["differs"] = {way: text for way, text in differences.items() if way != EAGER}
    if contenders[way].error and way not in (EAGER, PIANOLA):
        return {"case": case.name, "zoo": zoo, "failed": way}
    right = {way: contender for way, contender in contenders.items()
             if not contender.error and (way in FUSED or not differences[way])}
    if settings.device == "cpu" or settings.untimed or EAGER not in right:  # which differs from itself in each run
        return {"case": case.name, "zoo": zoo}
    with turn(settings, fcntl.LOCK_EX):
        for contender in right.values():
            contender.settle()
        samples = time(right, settings)
    made = measuring.case(case.name, "time per step", samples.pop("iterations"), EAGER, measuring.series(samples, "wall"))
    zoo["compiled"] = right[AUTO].said_of_compiling() if AUTO in right else []
    zoo["host"] = {way: statistics.median(taken["host"]) for way, taken in samples.items()}
    return made | {"zoo": zoo}


def time(contenders, settings):
    import measuring

    for _ in range(3):
        contenders[EAGER].turn()
    once = measuring.measure(contenders[EAGER].turn, 2, 2)["wall"] / 1e6
    iterations = max(2, min(ITERATIONS, int(settings.seconds / ROUNDS / once)))
    turns = {way: contender.turn for way, contender in contenders.items()}
    return measuring.alternate(turns, iterations, BURST, ROUNDS) | {"iterations": iterations}


def run_alone(case, settings, gpu=None, without=()):
    """In a process of its own; what became of it if it left no row. Contenders whose captures fail are left out of the next try.

    gpu: (name, file of its turns), where cases run side by side.
    """
    environment = os.environ | ({"CUDA_VISIBLE_DEVICES": gpu[0]} if gpu else {})
    if settings.jobs > 1:  # so that those beside it do not slow down the one that is timed
        environment = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"} | environment
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, __file__, "--case", case.name, "--device", settings.device, "--size", settings.size,
                   "--calls", str(settings.calls), "--seconds", str(settings.seconds), "--row", file.name, *(["--alone"] if settings.alone else []),
                   *(["--untimed"] if settings.untimed else []), *(["--turns", str(gpu[1])] if gpu else []),
                   *(part for way in without for part in ("--without", way))]
        try:
            ran = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=settings.limit,
                                 env=environment)
            text, end = ran.stdout, f"ended with status {ran.returncode}"
        except subprocess.TimeoutExpired as expired:
            text, end = (expired.stdout or b"").decode(), f"did not end within {settings.limit} s"
        made = Path(file.name).read_text()
    if not made:
        zoo = {"family": case.family, "kind": case.kind, "source": case.source, "traits": list(case.traits),
               "device": settings.device, "size": settings.size, "crashed": end, "trace": text[-4000:]}
        return {"case": case.name, "zoo": zoo}
    row = json.loads(made)
    failed = row.pop("failed", None)
    if failed is None:
        return row
    again = run_alone(case, settings, gpu, (*without, failed))
    again["zoo"].get("differs", {})[failed] = row["zoo"]["differs"][failed]
    return again


def run_all(those, settings):
    if settings.jobs == 1:
        yield from (run_alone(case, settings) for case in those)
        return
    gpus = visible_gpus() if settings.device == "cuda" else []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(settings.jobs) as pool:
        places = [(name, Path(folder) / f"gpu{name}") for name in gpus] or [None]
        yield from pool.map(lambda pair: run_alone(pair[1], settings, places[pair[0] % len(places)]), enumerate(those))


def visible_gpus():
    """Their names for CUDA_VISIBLE_DEVICES."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return given.split(",") if given else [str(number) for number in range(torch.cuda.device_count())]


def chosen(settings):
    known = set()
    if settings.missing:
        known = {row["case"] for row in read(settings.json)["results"][0]["cases"]}
    return [case for case in cases.CASES
            if (settings.filter in case.name or settings.filter in case.family) and case.name not in known]


def read(file):
    return json.loads(file.read_text()) if file.exists() else {"results": [{"cases": []}]}


def write(rows, file):
    from machine import describe_machine

    document = read(file)
    known = {row["case"]: row for row in document["results"][0]["cases"]} | {row["case"]: row for row in rows}
    ordered = [known[case.name] for case in cases.CASES if case.name in known]
    result = {"benchmark": f"{rows[0]['zoo']['device']}/zoo", "title": "Steps as people have written them", "cases": ordered}
    document = {"machine": describe_machine(), "command": shlex.join(["bench/zoo/run.py", *sys.argv[1:]]), "results": [result]}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document, indent=1) + "\n")


def summary(row):
    zoo = row["zoo"]
    if "crashed" in zoo:
        return f"{row['case']:24} CRASHED: {zoo['crashed']}: {zoo['trace'].strip().splitlines()[-1:]}"
    differs = zoo["differs"][PIANOLA]
    verdict = f"DIFFERS: {differs}" if differs else "bit-equal"
    reasons = [reason.splitlines()[0] for reason in zoo["reasons"][:1]]
    return f"{row['case']:24} {zoo['kind']:10.10} {zoo['replayed']:4}/{zoo['calls']:<4} {zoo['how']:20} {verdict} {' '.join(reasons)}"


def parse(arguments):
    parser = argparse.ArgumentParser(description="Runs the zoo.")
    parser.add_argument("filter", nargs="?", default="", help="cases whose name or family contains it")
    parser.add_argument("--case", choices=[case.name for case in cases.CASES], help="this one alone, in this process")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--size", default="small", choices=["small", "full"])
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--json", type=Path, help="the file of results")
    parser.add_argument("--missing", action="store_true", help="with --json: only cases that the file does not have")
    parser.add_argument("--row", type=Path, help="with --case: the file of its row alone")
    parser.add_argument("--alone", action="store_true", help="eager and Pianola only")
    parser.add_argument("--untimed", action="store_true", help="results only")
    parser.add_argument("--seconds", type=float, default=1, help="that the samples of one contender take at most, about")
    parser.add_argument("--jobs", type=int, default=1, help="cases side by side")
    parser.add_argument("--turns", type=Path, help=argparse.SUPPRESS)  # the file whose lock is the GPU
    parser.add_argument("--without", action="append", default=[], help="a contender to leave out")
    parser.add_argument("--limit", type=int, default=600, help="seconds that a case may take")
    settings = parser.parse_args(arguments)
    if settings.missing and not settings.json:
        parser.error("--missing wants --json FILE")
    return settings


def main(arguments):
    settings = parse(arguments)
    warnings.simplefilter("ignore")
    if settings.device == "cpu":
        torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # kernels that only help to find bugs
    # Backward passes of attention that differ from run to run, which warn_only lets pass.
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
    if settings.case:
        rows = [run_case(cases.named(settings.case), settings)]
        print(summary(rows[0]))
        if settings.row:
            settings.row.write_text(json.dumps(rows[0]))
    else:
        rows = []
        for row in run_all(chosen(settings), settings):
            rows.append(row)
            print(summary(row), flush=True)
            if settings.json:
                write([row], settings.json)
    if settings.json and settings.case:
        write(rows, settings.json)
    return 1 if any("crashed" in row["zoo"] or row["zoo"]["differs"][PIANOLA] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
