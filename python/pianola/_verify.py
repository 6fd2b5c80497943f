"""`pianola.verify`: runs a step eagerly and graphed from the same state, and compares all that they leave behind."""

import copy
import inspect
from typing import Any, Callable, Iterable, Mapping, Optional, Sequence, Union

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.utils import _pytree as pytree

from ._errors import refuse
from ._graph import Graph
from ._graphed import GraphedFunction
from ._load import _C
from ._patching import replacement
from ._structure import Structure, of_arguments

Step = Callable[..., Any]
Tolerances = Mapping[torch.dtype, Union[float, tuple[float, float], tuple[float, float, int]]]


class _Flat:
    """A step that takes the tensors of its arguments and returns those of its result, numbers among them as tensors."""

    def __init__(self, step: Step, structure: Optional[Structure]) -> None:
        self._step = step
        self._structure = structure

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        args, kwargs = ((), {}) if self._structure is None else self._structure.rebuild(tensors)
        return [leaf for value in pytree.tree_leaves(self._step(*args, **kwargs)) if (leaf := comparable(value)) is not None]


def comparable(value: Any) -> Optional[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return value
    return torch.tensor(value) if isinstance(value, (bool, int, float, complex)) else None


class Captured:
    """A step as a plain `pianola.Graph`: captured at the first call with inputs of some shapes, replayed from then on."""

    def __init__(self, step: Step, device: torch.device, generators: Sequence[torch.Generator]) -> None:
        self._step = step
        self._device = device
        self._generators = tuple(generators)
        self._graphs: dict[tuple, tuple[Graph, list[torch.Tensor], Any]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tensors, structure = of_arguments(args, kwargs)
        shapes = tuple((tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad) for tensor in tensors)
        if shapes not in self._graphs:
            self._graphs[shapes] = self._capture(tensors, structure)
        graph, inputs, result = self._graphs[shapes]
        graph.replay(*tensors) if inputs else graph.replay()
        return result

    def _capture(self, tensors: list[torch.Tensor], structure: Structure) -> tuple[Graph, list[torch.Tensor], Any]:
        inputs = [tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in tensors]
        results: list[Any] = []

        def step() -> None:
            args, kwargs = structure.rebuild(inputs)
            results[:] = [self._step(*args, **kwargs)]

        graph = Graph(self._device)
        graph.capture(step, inputs=inputs, generators=self._generators)
        return graph, inputs, results[0]


def verify(
    eager: Step,
    graphed: Optional[Step] = None,
    state: Any = None,
    *,
    steps: int = 5,
    inputs: Optional[Iterable[Any]] = None,
    between: Optional[Callable[..., Any]] = None,
    reset: Optional[Callable[[], Any]] = None,
    graphed_warmup: Optional[int] = None,
    tolerance: Optional[Tolerances] = None,
    repeat_eager: bool = True,
    poison: bool = True,
    narrow: bool = True,
    generators: Iterable[torch.Generator] = (),
    device: Optional[torch.device] = None,
) -> "_C.VerifyReport":
    """Proves that a graphed step computes what the eager one does, or shows where it does not.

        report = pianola.verify(step, graphed_step, (model, optimizer), inputs=[(x, y)])
        assert report.ok, report

    Both run `steps` times from the same state, with the same inputs and generators; after every step all results,
    parameters, buffers, gradients, optimizer state and generators are compared, bit for bit. Everything is put back.

    Args:
        eager: the step as it runs without a graph.
        graphed: the same, graphed in any way; calls of it must replay. None: `eager`, captured with `pianola.Graph`.
        state: what they read and write: modules, optimizers, schedulers, tensors, and lists and dicts of those. If the step
            writes something else, it is found, and the report says so.
        inputs: arguments, step by step, in turn: each a tensor, a tuple of arguments or a dict of keyword arguments. All
            sets have one structure; their shapes may differ if the graphed side accepts that.
        between: called between two steps, on both sides alike, with the number of steps that are over if it needs an argument.
        reset: puts back what steps and `between` change in Python (counters, numbers); called before each run and at the
            end. Settings of the optimizers and schedulers in `state` are put back anyway.
        graphed_warmup: calls of `graphed` before the comparison, put back afterwards. None: as many as a function made by
            `pianola.graphed` needs before it replays, 0 for others.
        tolerance: per dtype, (absolute, relative) or (absolute, relative, ulps); what is not named must be bit-equal.
        repeat_eager: run eager twice, to tell a model that does not repeat itself from a wrong graph.
        poison: before each graphed step, fill graph memory that nothing holds with NaN, so that stale reads show.
        narrow: on a difference, find the operation where it starts.
        generators: torch.Generators, besides the default ones, that the step draws from.
        device: where the graph of `graphed=None` runs; None: where the state or the inputs are.

    Raises:
        UsageError: an option is out of range, or inputs differ in what is no tensor.
    """
    tensors, structure = _flat_inputs(inputs)
    named = named_state(state)
    generators = list(generators)
    if graphed is None:
        graphed = Captured(eager, device or _device_of([tensor for _, tensor in named], tensors), generators)
    return _C.verify(
        _Flat(eager, structure),
        _Flat(graphed, structure),
        state=named,
        steps=steps,
        inputs=tensors,
        between=_taking_a_number(between),
        reset=_resetting(SavedSettings(state), reset),
        graphed_warmup=_warmup_of(graphed) * max(1, len(tensors)) if graphed_warmup is None else graphed_warmup,
        tolerance={dtype: _three(value) for dtype, value in (tolerance or {}).items()},
        repeat_eager=repeat_eager,
        poison=poison,
        narrow=narrow,
        generators=generators,
        subject=getattr(eager, "__qualname__", type(eager).__qualname__),
    )


class SavedSettings:
    """What optimizers and schedulers among the state keep in Python: settings of parameter groups, counts of steps."""

    def __init__(self, state: Any) -> None:
        self._groups: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._schedulers: list[tuple[Any, Any]] = []
        for entry in pytree.tree_leaves(state, is_leaf=_keeps_host_state):
            if isinstance(entry, torch.optim.Optimizer):
                self._groups += [(group, _settings(group)) for group in entry.param_groups]
            elif isinstance(entry, LRScheduler):
                self._schedulers.append((entry, copy.deepcopy(entry.state_dict())))

    def put_back(self) -> None:
        for scheduler, saved in self._schedulers:
            scheduler.load_state_dict(copy.deepcopy(saved))
        for group, saved in self._groups:
            group.update(saved)


def _keeps_host_state(entry: Any) -> bool:
    return isinstance(entry, (torch.optim.Optimizer, LRScheduler))


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params" and not isinstance(value, torch.Tensor)}


def named_state(state: Any, name: str = "") -> list[tuple[str, torch.Tensor]]:
    """The tensors of modules, optimizers and nested containers, with what their owner calls them."""
    named: list[tuple[str, torch.Tensor]] = []
    _collect(state, name, named, set())
    return named


def _collect(state: Any, name: str, named: list[tuple[str, torch.Tensor]], seen: set[int]) -> None:
    if isinstance(state, torch.Tensor):
        if id(state) not in seen:
            seen.add(id(state))
            named.append((name or "state", state))
    elif isinstance(state, torch.nn.Module):
        for kind in (state.named_parameters(), state.named_buffers()):
            for path, tensor in kind:
                _collect(tensor, _joined(name, path), named, seen)
    elif isinstance(state, torch.optim.Optimizer):
        _collect_optimizer(state, name or "optimizer", named, seen)
    elif isinstance(state, Mapping):
        for key, value in state.items():
            _collect(value, _joined(name, str(key)), named, seen)
    elif isinstance(state, (list, tuple, set)):
        for i, value in enumerate(state):
            _collect(value, name if len(state) == 1 else _joined(name, str(i)), named, seen)
    elif state is not None and not isinstance(state, (bool, int, float, str, LRScheduler)):
        refuse(
            f"state holds a {type(state).__qualname__}, whose tensors are not known",
            "pass modules, optimizers, tensors, and lists, tuples and dicts of them",
        )


def _collect_optimizer(
    optimizer: torch.optim.Optimizer, name: str, named: list[tuple[str, torch.Tensor]], seen: set[int]
) -> None:
    for g, group in enumerate(optimizer.param_groups):
        for p, parameter in enumerate(group["params"]):
            _collect(parameter, f"{name}.group {g}.parameter {p}", named, seen)
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    _collect(value, f"{name}.group {g}.parameter {p}.{key}", named, seen)
        for key, value in group.items():
            if isinstance(value, torch.Tensor):
                _collect(value, f"{name}.group {g}.{key}", named, seen)


def _joined(name: str, part: str) -> str:
    return f"{name}.{part}" if name else part


def _flat_inputs(inputs: Optional[Iterable[Any]]) -> tuple[list[list[torch.Tensor]], Optional[Structure]]:
    sets: list[list[torch.Tensor]] = []
    first: Optional[Structure] = None
    for entry in inputs or ():
        args, kwargs = _arguments(entry)
        tensors, structure = of_arguments(args, kwargs)
        if first is not None and not first.same(structure):
            refuse(
                f"the sets of inputs differ in more than their tensors; {first.difference(structure)}",
                "verify each on its own: a graph freezes everything but tensors",
            )
        first = structure
        sets.append(tensors)
    return sets, first


def _arguments(entry: Any) -> tuple[tuple, dict[str, Any]]:
    if isinstance(entry, tuple):
        return entry, {}
    return ((), entry) if isinstance(entry, dict) else ((entry,), {})


def _device_of(state: list[torch.Tensor], inputs: list[list[torch.Tensor]]) -> torch.device:
    tensors = [*state, *(tensor for entry in inputs for tensor in entry)]
    return next((tensor.device for tensor in tensors if tensor.is_cuda), torch.device("cpu"))


def _taking_a_number(between: Optional[Callable[..., Any]]) -> Optional[Callable[[int], Any]]:
    if between is None:
        return None
    try:
        inspect.signature(between).bind()
    except TypeError:  # it wants an argument
        return between
    except ValueError:  # a builtin that does not tell
        pass
    return lambda steps: between()


def _warmup_of(graphed: Any) -> int:
    if isinstance(graphed, torch.nn.Module):
        graphed = replacement(graphed)
    return graphed.calls_before_replay if isinstance(graphed, GraphedFunction) else 0


def _resetting(host: "SavedSettings", reset: Optional[Callable[[], Any]]) -> Callable[[], None]:
    def put_back() -> None:
        host.put_back()
        if reset is not None:
            reset()

    return put_back


def _three(tolerance: Any) -> tuple[float, float, int]:
    if not isinstance(tolerance, tuple):
        return float(tolerance), 0.0, 0
    absolute, relative, ulps = (*tolerance, 0)[:3]
    return absolute, relative, ulps
