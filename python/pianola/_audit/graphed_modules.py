"""Rules for modules that are going to be graphed for themselves: hooks, buffers, unused parameters and inputs, overlapping
calls, gradients of gradients."""

import dis
import functools
import sys
from types import CodeType
from typing import Any, Iterable, Iterator, Optional

import torch

from .._structure import of_arguments, tensors_of
from . import files
from .files import Place, place_of_frame
from .findings import Findings, Found
from .hooks import hooks_of
from .locate import lines_of
from .reach import Walk
from .table import Observers
from .tensor_hooks import TensorHooks
from .unused_inputs import DifferentiableInputs


class GraphedModules:
    """Watches the modules during one run, which is not compared: that puts hooks on results and parameters."""

    def __init__(self, modules: list[torch.nn.Module], findings: Findings) -> None:
        self._modules = modules
        self._findings = findings
        self._names: dict[torch.nn.Module, str] = {}
        self._open: dict[torch.nn.Module, list[object]] = {}  # calls whose backward has not begun
        self._inputs: dict[torch.nn.Module, list[DifferentiableInputs]] = {}  # of calls that have not returned
        self._reached: set[int] = set()  # parameters that got a gradient
        self._hooks = TensorHooks()
        self._twice: dict[torch.nn.Module, Place] = {}  # whose backward pass is to be differentiated, and where it began

    def begin(self, walk: Walk) -> Observers:
        for module in self._modules:
            self._names[module] = walk.modules.get(module, type(module).__qualname__)
            self._check_hooks(module)
            self._check_buffers(module)
            for parameter in _leaves(module):
                self._hooks.after_accumulation(parameter, functools.partial(_note, self._reached))
        self._open = {module: [] for module in self._modules}
        self._inputs = {module: [] for module in self._modules}
        return [(module, self._on_call) for module in self._modules]

    def end(self, codes: Iterable[CodeType]) -> None:
        """Codes: the user's functions that ran."""
        self._hooks.remove()
        for module in self._modules:
            self._check_parameters(module)
        for module, place in self._twice.items():
            self._findings.add(
                Found(
                    "PG1007",
                    place if place.known else _line_with_keyword("create_graph", codes),
                    what=f"gradients of the backward pass of '{self._names[module]}' are computed",
                    evidence="its backward pass ran with create_graph",
                    module=self._names[module],
                )
            )
        self._open.clear()
        self._inputs.clear()

    def _check_hooks(self, module: torch.nn.Module) -> None:
        for kind, hook, place in hooks_of(module):
            self._findings.add(
                Found(
                    "PG1004",
                    place,
                    op=kind,
                    what=f"'{self._names[module]}' has a {kind} when it is graphed",
                    evidence=f"{getattr(hook, '__qualname__', type(hook).__qualname__)}, registered as a {kind}",
                    module=self._names[module],
                ),
                detail=self._names[module],
            )

    def _check_buffers(self, module: torch.nn.Module) -> None:
        for name, buffer in module.named_buffers():
            if buffer.requires_grad:
                self._findings.add(
                    Found(
                        "PG904",
                        _definition_of(module, name),
                        what=f"the buffer '{self._names[module]}.{name}' requires grad",
                        module=self._names[module],
                    ),
                    detail=name,
                )

    def _check_parameters(self, module: torch.nn.Module) -> None:
        """Only where a backward pass reached some of them."""
        named = [(name, one) for name, one in module.named_parameters() if one.requires_grad and one.is_leaf]
        unused = [name for name, parameter in named if id(parameter) not in self._reached]
        if len(unused) == len(named):
            return
        for name in unused:
            self._findings.add(
                Found(
                    "PG905",
                    _definition_of(module, name),
                    what=f"the parameter '{self._names[module]}.{name}' gets no gradient",
                    evidence=f"{len(named) - len(unused)} of {len(named)} parameters got one in a backward pass",
                    module=self._names[module],
                ),
                detail=name,
            )

    def _check_inputs(self, module: torch.nn.Module, inputs: DifferentiableInputs, results: list[torch.Tensor]) -> None:
        for i in inputs.unused(results):
            self._findings.add(
                Found(
                    "PG905",
                    place_of_code(getattr(type(module).forward, "__code__", None)),
                    what=f"input {i} of '{self._names[module]}' requires grad, and no result depends on it",
                    evidence="make_graphed_callables() refuses it, unless allow_unused_input is set",
                    fix="pass it detached, or use it; or set allow_unused_input",
                    severity="breaks capture",
                    module=self._names[module],
                ),
                detail=f"{self._names[module]} input {i}",
            )

    def _on_call(self, module: torch.nn.Module, event: str, told: Any, place: Optional[tuple[str, str, int]]) -> None:
        calls = self._open.get(module)
        if calls is None or not torch.is_grad_enabled():
            return
        if event == "leave":
            results = tensors_of(told)
            self._wait_for_backward(module, calls, results)
            if self._inputs[module]:
                self._check_inputs(module, self._inputs[module].pop(), results)
            return
        self._inputs[module].append(DifferentiableInputs(of_arguments(*told)[0] if told is not None else []))
        if calls:
            self._findings.add(
                Found(
                    "PG907",
                    Place(*place) if place is not None else Place(),
                    what=f"'{self._names[module]}' runs forward again before its backward",
                    evidence=f"{len(calls)} call{'s' if len(calls) > 1 else ''} before had no backward yet",
                    module=self._names[module],
                )
            )

    def _wait_for_backward(self, module: torch.nn.Module, calls: list[object], results: list[torch.Tensor]) -> None:
        tensors = [tensor for tensor in results if tensor.requires_grad]
        call = object()

        def begins(gradient: torch.Tensor) -> None:
            if call in calls:
                calls.remove(call)
            if torch.is_grad_enabled():  # on CUDA in a thread of autograd's, which has no frames
                self._twice.setdefault(module, place_of_frame(sys._getframe()))

        if tensors:
            calls.append(call)
            for tensor in tensors:
                self._hooks.on_gradient(tensor, begins)


def place_of_code(code: Optional[CodeType]) -> Place:
    """Where a function of the user's begins."""
    return Place(code.co_name, code.co_filename, code.co_firstlineno) if code is not None and files.is_users(code) else Place()


def _leaves(module: torch.nn.Module) -> Iterator[torch.nn.Parameter]:
    return (one for one in module.parameters() if one.requires_grad and one.is_leaf)


def _note(reached: set[int], parameter: torch.Tensor) -> None:
    reached.add(id(parameter))


def _definition_of(module: torch.nn.Module, path: str) -> Place:
    """Where a parameter or buffer, or the innermost of the user's modules around it, gets its name."""
    parts = path.split(".")
    for depth in range(len(parts) - 1, -1, -1):
        owner = module.get_submodule(".".join(parts[:depth]))
        for kind in type(owner).__mro__:
            code = getattr(vars(kind).get("__init__"), "__code__", None)
            if code is not None and files.is_users(code):
                place = _line_that_names(code, parts[depth])
                if place.known:
                    return place
    return Place()


def _line_with_keyword(name: str, codes: Iterable[CodeType]) -> Place:
    """The first call with a keyword argument of that name."""
    for code in codes:
        for line, instructions in lines_of(code):
            if any(name in _keywords(one, code) for one in instructions):
                return Place(code.co_name, code.co_filename, line)
    return Place()


def _keywords(instruction: dis.Instruction, code: CodeType) -> tuple:
    """Of a call; each version of Python says them in another way."""
    value = code.co_consts[instruction.arg or 0] if instruction.opname == "KW_NAMES" else instruction.argval
    return value if isinstance(value, tuple) else ()


def _line_that_names(code: CodeType, name: str) -> Place:
    for line, instructions in lines_of(code):
        if any(one.opname in ("STORE_ATTR", "LOAD_CONST") and one.argval == name for one in instructions):
            return Place(code.co_name, code.co_filename, line)
    return Place()
