"""Optimizers, compiled functions, FP8 modules, distributed training: what they need that a capture does not give."""

import os
import sys
from typing import Any, Iterator, Optional

import torch

from .._load import _C
from .changes import Change
from .files import Place
from .findings import Findings, Found
from .marks import Mark
from .reach import Walk
from .table import Observers, Table, Watched

_DDP = torch.nn.parallel.DistributedDataParallel
_DDP_WARMUP = 11
_NCCL = (2, 9, 6)
_WATCHDOG = "TORCH_NCCL_ASYNC_ERROR_HANDLING"


class Frameworks:
    """Looks before and after each run."""

    def __init__(self, device: torch.device, capture_warmup: int, table: Table, findings: Findings) -> None:
        self._device = device
        self._capture_warmup = capture_warmup
        self._table = table
        self._findings = findings
        self._optimizers: dict[int, tuple[torch.optim.Optimizer, str]] = {}
        self._stepped: dict[int, Place] = {}
        self._rates: dict[str, Any] = {}
        self._rate_changes: dict[int, Change] = {}
        self._replicas: dict[torch.nn.Module, str] = {}
        self._replica_call = Place()
        self._compiled = _compilations()
        if torch.distributed.is_available():
            table.add(Watched("", "DistributedDataParallel", _DDP.forward, ""))

    def before_run(self, walk: Walk) -> Observers:
        """What has to be told of modules' calls."""
        for optimizer, path in walk.optimizers.items():
            if id(optimizer) not in self._optimizers:
                self._optimizers[id(optimizer)] = (optimizer, path)
                self._table.add(Watched("", "Optimizer.step", type(optimizer).step, "", by_object=True))
            self._compare_rates(optimizer, path)
        self._replicas = {module: path for module, path in walk.modules.items() if isinstance(module, _DDP)}
        self._compiled = _compilations()
        return [(module, self._on_fp8_call) for module in walk.modules if _is_fp8(module)]

    def after_run(self, hits: "list[_C.PythonHit]", iteration: int) -> None:
        """`iteration` 0: a run of the warm-up."""
        for hit in hits:
            op, place = self._table.of(hit).op, Place(hit.function, hit.file, hit.line)
            if op == "Optimizer.step":
                self._stepped.setdefault(hit.subject, place)
            elif op == "DistributedDataParallel" and not self._replica_call.known:
                self._replica_call = place
            elif op == "torch.compile" and iteration == 0 and self._capture_warmup == 0:
                self._findings.add(Found("PG1005", place, op, "a compiled function compiles in its first call"))
        if iteration > 0 and _compilations() > self._compiled and not self._findings.has("PG1005"):
            self._findings.add(Found("PG1005", op="torch.compile", iteration=iteration))

    @staticmethod
    def has_compiled() -> bool:
        """Whether torch.compile has compiled anything in this process."""
        return _compilations() > 0

    def finish(self) -> None:
        """After all runs."""
        if not self._replicas and _default_group_is_nccl():
            for found in _of_nccl(Place(), True, "the step"):
                self._findings.add(found)
        for module, path in self._replicas.items():
            for found in self._of_replica(module, path):
                self._findings.add(found, detail=path)

    def host_optimizers(self) -> Iterator[Found]:
        """Optimizers that cannot be captured, although no operation may have shown it."""
        for identity, place in self._stepped.items():
            optimizer, path = self._optimizers.get(identity, (None, ""))
            if optimizer is None:
                continue
            change = self._rate_changes.get(identity)
            if change is not None:
                what = f"the learning rate of '{path}' is a number of the host"
                yield Found("PG1001", place, "Optimizer.step", what, change.evidence())
            elif _is_not_capturable(optimizer):
                what = f"'{path}' refuses to be captured: capturable is off"
                yield Found("PG1001", place, "Optimizer.step", what, severity="breaks capture")

    # --- Optimizers ---

    def _compare_rates(self, optimizer: torch.optim.Optimizer, path: str) -> None:
        for i, group in enumerate(optimizer.param_groups):
            place, rate = f"{path}.param_groups[{i}]['lr']", group.get("lr")
            before = self._rates.get(place, rate)
            if isinstance(rate, (int, float)) and isinstance(before, (int, float)) and rate != before:
                change = Change("PG304", place, Mark("number", before), Mark("number", rate))
                self._rate_changes.setdefault(id(optimizer), change)
            self._rates[place] = rate

    # --- FP8 ---

    def _on_fp8_call(self, module: torch.nn.Module, event: str, result: Any, place: Optional[tuple[str, str, int]]) -> None:
        if event == "enter" and not _in_fp8_autocast():
            self._findings.add(
                Found(
                    "PG1009",
                    Place(*place) if place is not None else Place(),
                    op=type(module).__qualname__,
                    what=f"a {type(module).__qualname__} with FP8 state runs outside FP8 autocast",
                )
            )

    # --- Distributed training ---

    def _of_replica(self, module: torch.nn.Module, path: str) -> Iterator[Found]:
        place = self._replica_call
        nccl = _backend_of(module) == "nccl"
        yield from _of_nccl(place, nccl, f"'{path}'")
        on_default = _first_on_default_stream(module)
        if on_default is not None:
            evidence = f"the gradient of '{path}.{on_default}' is accumulated on the default stream"
            yield Found("PG1103", place, what=f"'{path}' was made on the default stream", evidence=evidence)
        if self._capture_warmup < _DDP_WARMUP:
            what = f"a capture of '{path}' after {self._capture_warmup} warm-up runs is too early"
            yield Found("PG1104", place, what=what, evidence=f"capture_warmup is {self._capture_warmup}")


def _is_not_capturable(optimizer: torch.optim.Optimizer) -> bool:
    return any(
        group.get("capturable") is False and any(one.is_cuda for one in group["params"])
        for group in optimizer.param_groups
    )


def _compilations() -> int:
    """How many graphs torch.compile has compiled; 0 where nobody uses it."""
    utils = sys.modules.get("torch._dynamo.utils")
    counters = getattr(utils, "counters", None)
    return int(counters["stats"]["unique_graphs"]) if counters is not None else 0


def _is_fp8(module: torch.nn.Module) -> bool:
    return vars(module).get("fp8_initialized") is True


def _in_fp8_autocast() -> bool:
    for name in ("transformer_engine.pytorch.quantization", "transformer_engine.pytorch.fp8"):
        manager = getattr(sys.modules.get(name), "FP8GlobalStateManager", None)
        if manager is not None:
            return bool(manager.is_fp8_enabled())
    return False


def _of_nccl(place: Place, nccl: bool, subject: str) -> Iterator[Found]:
    handling = os.environ.get(_WATCHDOG, os.environ.get("NCCL_ASYNC_ERROR_HANDLING", ""))
    if handling != "0" and (nccl or handling != ""):
        evidence = f"{_WATCHDOG} is {handling!r}" if handling else f"{_WATCHDOG} is not set, which means on"
        yield Found("PG1101", place, what=f"NCCL's watchdog runs beside {subject}", evidence=evidence)
    version = torch.cuda.nccl.version() if nccl else _NCCL
    if version < _NCCL:
        yield Found("PG1102", place, what=f"NCCL is {'.'.join(map(str, version))}")


def _default_group_is_nccl() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized() and (
        "nccl" in str(torch.distributed.get_backend())
    )


def _backend_of(module: torch.nn.Module) -> str:
    group = getattr(module, "process_group", None)
    if group is None or not torch.distributed.is_initialized():
        return ""
    return str(torch.distributed.get_backend(group))


def _first_on_default_stream(module: torch.nn.Module) -> Optional[str]:
    for name, parameter in module.named_parameters():
        if parameter.is_cuda and parameter.requires_grad and _C.gradient_stream(parameter) == 0:
            return name
    return None
