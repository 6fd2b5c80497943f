"""`pianola.audit`: runs a step a few times, and tells all that would break a capture of it or make its replays wrong."""

import contextlib
import inspect
from typing import Any, Callable, Iterable, Iterator, Optional

import torch

from .. import _recording
from .._device import Device, as_device
from .._errors import CaptureError, refuse
from .._load import _C
from .._structure import of_arguments, tensors_of
from . import files
from .findings import Findings, Found
from .frameworks import Frameworks
from .graphed_modules import GraphedModules, place_of_code
from .hits import take_hits
from .hooks import add_hooks_with_effects
from .host_state import HostState, names_of_tensors
from .merge import merged
from .numpy_seeds import seeding_lines
from .reach import Walk, roots_of
from .runs import OwnStream, call
from .table import Table
from .target import Arguments, Batches, Target, taking_a_number
from .unused_inputs import DifferentiableInputs


def audit(
    step: Any,
    *,
    batches: Optional[Iterable[Any]] = None,
    between: Optional[Callable[..., Any]] = None,
    iterations: int = 3,
    warmup: int = 1,
    sources: bool = True,
    trial: bool = True,
    restore: bool = True,
    generators: Iterable[torch.Generator] = (),
    callables: Iterable[torch.nn.Module] = (),
    capture_warmup: int = 3,
    device: Device = None,
    free_memory: Optional[int] = None,
) -> "_C.AuditReport":
    """Finds the hazards of a step before you capture it: each with its rule, the line, what was seen, and what to do.

        report = pianola.audit(train_step, batches=[(x, y), (x2, y2)], between=lambda: scheduler.step())
        print(report)
        assert report.ok

    The step runs eagerly; what it computes, moves, reads on the host and changes in Python is compared run by run. Tensors
    and generators are put back at the end; what the step and `between` do to other variables of Python is not.

    Args:
        step: a function, or a module: its forward pass and, if it trains, its backward pass, by the rules of graphed
            callables.
        batches: the arguments of each call, in turn: tuples of arguments, dicts of keyword arguments, or single arguments.
            A graph copies its tensor arguments in, so that other memory is no hazard; other shapes are. None: it takes none.
        between: plays the training loop between two runs (the next batch, a scheduler's step); called with how many runs
            are over if it needs an argument.
        iterations: runs that are watched; 2 at least.
        warmup: runs before, which are not.
        sources: name the source lines of operations; without, runs are faster.
        trial: try a capture at the end, which finds what nothing else shows.
        restore: put back what the runs wrote.
        generators: torch.Generators, besides the default ones, that you will pass to the capture.
        callables: modules inside the step that you will graph by themselves.
        capture_warmup: warm-up runs that the capture will have.
        device: where the graph will be; None: on the GPU if the step has tensors there.
        free_memory: bytes that are left for the graph, where it is going to run elsewhere; None: what the GPU has left now.

    Returns:
        A report: findings, ok, worst, exit_code, to_text(), to_json(), to_sarif(); str() is the text.

    Raises:
        UsageError: an option is out of range, or a capture is open. What `between` raises comes out unchanged; what the
        step raises is a finding.
    """
    target = Target(step)
    graphed = list(callables) + ([target.module] if target.module is not None else [])
    for module in graphed:
        if not isinstance(module, torch.nn.Module):
            refuse(f"callables holds a {type(module).__qualname__}", "name the modules that are going to be graphed")
    files.hide_from_engine()
    arguments = Batches(batches)
    first = arguments.next()
    chosen = _device_of(target, first) if device is None else as_device(device)
    session = _C.AuditSession(
        iterations=iterations,
        warmup=warmup,
        sources=sources,
        trial=trial,
        restore=restore,
        generators=list(generators),
        capture_warmup=capture_warmup,
        device=chosen,
        free_memory=free_memory,
        subject=target.name,
    )
    one = _Audit(session, target, chosen, _Calls(arguments, first, between))
    one.look_at(graphed, capture_warmup)
    with _optimizers_put_back(target, restore), _gradients_put_back(target, graphed, restore):
        return one.run(max(warmup, 1) if graphed else warmup, iterations, trial)  # modules are looked at in a warm-up run


def _device_of(target: Target, first: Arguments) -> torch.device:
    tensors = [*tensors_of(first), *(tensor for _, tensor in Walk(roots_of(target.step)).tensors())]
    return next((tensor.device for tensor in tensors if tensor.is_cuda), torch.device("cpu"))


@contextlib.contextmanager
def _optimizers_put_back(target: Target, restore: bool) -> Iterator[None]:
    """State that an optimizer makes in its first step is new memory, which nothing restores: it is dropped again."""
    optimizers = {one: set(map(id, one.state)) for one in Walk(roots_of(target.step)).optimizers} if restore else {}
    try:
        yield
    finally:
        for optimizer, before in optimizers.items():
            for parameter in [one for one in optimizer.state if id(one) not in before]:
                del optimizer.state[parameter]


@contextlib.contextmanager
def _gradients_put_back(target: Target, modules: list[torch.nn.Module], restore: bool) -> Iterator[None]:
    """A step that drops gradients before it reads their parameters drops those that were there: no operation shows it."""
    leaves = {id(one): one for _, one in Walk(roots_of(target.step)).tensors() if one.is_leaf} if restore else {}
    leaves.update({id(one): one for module in modules for one in module.parameters() if restore})
    before = [(leaf, leaf.grad) for leaf in leaves.values() if leaf.requires_grad]
    try:
        yield
    finally:
        for leaf, gradient in before:
            if leaf.grad is not gradient:
                leaf.grad = gradient


class _Calls:
    """The arguments of each run, after what the training loop does between runs."""

    def __init__(self, arguments: Batches, first: Arguments, between: Optional[Callable[..., Any]]) -> None:
        self._arguments = arguments
        self._first: Optional[Arguments] = first
        self._between = taking_a_number(between)
        self.has_between = between is not None or not arguments.are_listed
        self.over = 0  # runs

    def next(self) -> Arguments:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        self._between(self.over)
        return self._arguments.next()


class _Audit:
    """One audit: the loop of runs."""

    def __init__(self, session: "_C.AuditSession", target: Target, device: torch.device, calls: _Calls) -> None:
        self._session = session
        self._target = target
        self._device = device
        self._calls = calls
        self._stream = OwnStream(device)
        self._table = Table()
        self._findings = Findings()
        self._host = HostState(target, self._table.watch)
        self._failed = False

    def look_at(self, graphed: list[torch.nn.Module], capture_warmup: int) -> None:
        """What is looked for besides."""
        self._graphed = GraphedModules(graphed, self._findings)
        self._frameworks = Frameworks(self._device, capture_warmup, self._table, self._findings)

    def run(self, warmup: int, iterations: int, trial: bool) -> "_C.AuditReport":
        for i in range(warmup):
            self._warm_up(is_last=i == warmup - 1)
        for iteration in range(1, iterations + 1):
            self._observe(iteration)
        if self._host.wants_lines(self._findings):
            self._locate()
        self._host.add_changes(self._findings)
        add_hooks_with_effects(self._host.walk().modules.items(), self._findings)
        self._frameworks.finish()
        for place in seeding_lines(self._table.watch.executed()):
            self._findings.add(Found("PG602", place, "numpy.random.seed", severity="wrong numbers"))
        for found in self._findings:  # before the trial: what is known is not told twice
            self._session.add(found.as_finding())
        if not self._host.saw_all:
            self._session.add_note("the step reaches more variables than were looked at; changes of the others were not seen")
        if trial and not self._failed:
            self._try_capture()
        return merged(self._session.finish(), self._findings, self._host, self._frameworks)

    def _warm_up(self, is_last: bool) -> None:
        if self._failed:
            return
        arguments = self._calls.next()
        walk = self._look()
        observers = self._frameworks.before_run(walk)
        if is_last:  # here, since it adds hooks
            observers += self._graphed.begin(walk)
        self._table.observe(observers)
        self._run_unwatched(lambda: self._watched(self._table.watch.begin, arguments))
        if is_last:
            self._graphed.end(self._host.codes())
        self._frameworks.after_run(self._table.watch.hits(), 0)
        self._table.watch.clear_hits()

    def _observe(self, iteration: int) -> None:
        if self._failed:
            return
        arguments = self._calls.next()
        walk = self._look()
        self._host.begin(walk, arguments, iteration)
        self._table.observe(self._frameworks.before_run(walk))
        inputs = DifferentiableInputs(of_arguments(*arguments)[0])
        with self._stream():
            self._session.begin(of_arguments(*arguments)[0], names_of_tensors(self._target, walk, arguments))
            del walk
            try:
                result = self._watched(lambda: self._session.watch(self._table.watch), arguments)
                self._session.end(tensors_of(result))
                if self._target.module is None:  # of modules their own rules tell
                    self._check_inputs(inputs, tensors_of(result))
                del result
            except Exception as error:
                self._end_by(error)
        self._calls.over += 1
        take_hits(self._table, self._device.type, iteration, self._findings)
        self._frameworks.after_run(self._table.watch.hits(), iteration)
        self._table.watch.clear_hits()
        self._host.end(iteration)

    def _check_inputs(self, inputs: DifferentiableInputs, results: list[torch.Tensor]) -> None:
        code = getattr(inspect.unwrap(self._target.step), "__code__", None)
        for i in inputs.unused(results):
            self._findings.add(
                Found(
                    "PG905",
                    place_of_code(code),
                    what=f"input {i} requires grad, and no result depends on it",
                    evidence="graphed() gives it no gradient; make_graphed_callables() refuses it",
                    fix="pass it detached, or use it",
                ),
                detail=f"input {i}",
            )

    def _locate(self) -> None:
        if not self._failed:
            arguments = self._calls.next()
            self._run_unwatched(lambda: self._host.locate(lambda: call(self._target, *arguments)))

    def _look(self) -> Walk:
        self._table.catch_up()
        walk = self._host.walk_again(is_same=not self._calls.has_between)
        self._table.watch.name_modules(walk.modules)
        return walk

    def _watched(self, begin: Callable[[], None], arguments: Arguments) -> Any:
        begin()
        try:
            return call(self._target, *arguments)
        finally:
            self._table.watch.end()

    def _run_unwatched(self, run: Callable[[], Any]) -> None:
        """A run that the engine does not compare."""
        with self._stream():
            self._session.begin_warmup()
            try:
                run()
                self._session.end_warmup()
            except Exception as error:
                self._end_by(error)
        self._calls.over += 1

    def _end_by(self, error: Exception) -> None:
        self._failed = True
        text = str(error).strip()
        name = type(error).__qualname__
        self._session.end_by(error, f"{name}: {text}" if text else name, files.place_of_error(error.__traceback__))

    def _try_capture(self) -> None:
        tensors, structure = of_arguments(*self._calls.next())
        static = [tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in tensors]

        def step() -> None:
            call(self._target, *structure.rebuild(static))

        def between() -> None:
            others, _ = of_arguments(*self._calls.next())
            with torch.no_grad():
                for mine, other in zip(static, others):
                    if mine.shape == other.shape:
                        mine.copy_(other)

        with _recording.scope(self._device):
            if self._frameworks.has_compiled():  # in the modes of a recording it compiles anew, and not while recording
                self._run_unwatched(lambda: _quietly(step))
            self._session.try_capture(step, between)


def _quietly(step: Callable[[], None]) -> None:
    """What it refuses, the capture is going to refuse too."""
    with contextlib.suppress(CaptureError):
        step()
