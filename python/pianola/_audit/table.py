"""The calls that are watched for, and what each means in a step that is to be captured."""

import builtins
import dataclasses
import datetime
import dis
import inspect
import io
import logging
import os
import random
import sys
import time
import uuid
import warnings
from typing import Any, Callable, Iterator, Optional

import torch

from .. import _stream
from .._load import _C
from . import files

_DEVICE = "the device"


@dataclasses.dataclass(frozen=True)
class Watched:
    """One callable."""

    rule: str
    op: str  # as people call it
    callable: Any
    what: str
    quiet: bool = False  # operations inside belong to it
    own: bool = False  # counts only where the user's code calls it, not where torch does
    also: str = ""  # another rule
    by_object: bool = False  # calls on different objects are different hits
    part_of: str = ""  # another op: on a line where that was seen before, this is how it does its work
    wanted: Optional[Callable[["_C.PythonHit", str], bool]] = None  # (hit, device type of the step)


def _reads_a_tensor(hit: "_C.PythonHit", device: str) -> bool:
    return not hit.device.startswith("cpu") or device == "cpu"


def _is_direct(hit: "_C.PythonHit", device: str) -> bool:
    """The standard library looks at the clock for many reasons."""
    return hit.instruction >= 0


def _is_output(hit: "_C.PythonHit", device: str) -> bool:
    """A string in memory that stands for the standard output."""
    return hit.subject in (id(sys.stdout), id(sys.stderr))


def _is_told_cpu(hit: "_C.PythonHit", device: str) -> bool:
    """x.to("cpu"), written so; on the CPU that does nothing and shows nowhere else."""
    if device != "cpu" or hit.device != "cpu" or hit.instruction < 0:
        return False
    return "cpu" in _constants_before(hit.code, hit.instruction)


def _constants_before(code: Any, offset: int) -> list[Any]:
    """Constants among the arguments of the call at `offset`: between it and the look-up of the method."""
    found: list[Any] = []
    for instruction in dis.get_instructions(code):
        if instruction.offset >= offset:
            break
        if instruction.opname in ("LOAD_METHOD", "LOAD_ATTR") and instruction.argval == "to":
            found = []
        elif instruction.opname == "LOAD_CONST":
            found.append(instruction.argval)
    return found


def _tensor() -> Iterator[Watched]:
    tensor = torch.Tensor
    copied = "copies a tensor to the host"
    yield Watched("PG103", "Tensor.cpu", tensor.cpu, f"Tensor.cpu {copied}", wanted=_reads_a_tensor)
    yield Watched("PG103", "Tensor.numpy", tensor.numpy, "Tensor.numpy hands a tensor's values to the host")
    yield Watched("PG103", "Tensor.tolist", tensor.tolist, f"Tensor.tolist {copied}")
    yield Watched("PG103", "Tensor.to", tensor.to, f"Tensor.to('cpu') {copied}", wanted=_is_told_cpu)
    yield Watched("PG103", "Tensor.__array__", tensor.__array__, "NumPy takes a tensor's values")
    yield Watched("PG103", "Tensor.__dlpack__", tensor.__dlpack__, "a tensor's memory is handed to other code by DLPack",
                  wanted=lambda hit, device: device == "cpu")  # fmt: skip
    for storage in (torch.UntypedStorage, torch.TypedStorage):  # what copy.copy() does not ask
        yield Watched("PG103", "pickle", storage.__reduce__, "pickle copies a tensor's values")
    yield Watched("PG103", "torch.save", torch.save, "torch.save copies tensors to a file", also="PG804", part_of="pickle")
    yield Watched("PG104", "Tensor.__repr__", tensor.__repr__, "a tensor is printed or made a string", quiet=True)
    yield Watched("PG104", "Tensor.__format__", tensor.__format__, "a tensor is formatted", quiet=True)


def _waiting() -> Iterator[Watched]:
    def waits(op: str, function: Any, for_what: str) -> Watched:
        return Watched("PG108", op, function, f"{op} waits for {for_what}")

    yield waits("torch.cuda.synchronize", torch.cuda.synchronize, _DEVICE)
    yield waits("torch.cpu.synchronize", torch.cpu.synchronize, _DEVICE)
    if hasattr(torch, "accelerator"):
        yield waits("torch.accelerator.synchronize", torch.accelerator.synchronize, _DEVICE)
    yield waits("Event.elapsed_time", torch.cuda.Event.elapsed_time, "two events")
    for name, kinds in (("Stream", (torch.cuda.Stream, torch.Stream, torch.cpu.Stream, _stream.CPUStream)),
                        ("Event", (torch.cuda.Event, torch.Event))):  # fmt: skip
        for kind in kinds:
            synchronize, query = getattr(kind, "synchronize", None), getattr(kind, "query", None)
            if synchronize is not None:
                yield waits(f"{name}.synchronize", synchronize, f"a{'n' if name == 'Event' else ''} {name.lower()}")
            if query is not None:
                yield Watched("PG109", f"{name}.query", query, f"{name}.query asks whether work is done")


def _torch_random() -> Iterator[Watched]:
    def seeds(op: str, function: Any) -> Watched:
        return Watched("PG602", op, function, f"{op} sets a generator inside the step")

    def reads(op: str, function: Any) -> Watched:
        return Watched("PG603", op, function, f"{op} reads a generator's state inside the step")

    generator = torch._C.Generator
    for name in ("manual_seed", "seed", "set_state", "set_offset"):
        yield seeds(f"Generator.{name}", getattr(generator, name))
    yield reads("Generator.get_state", generator.get_state)
    for module, prefix in ((torch.random, "torch"), (torch.cuda.random, "torch.cuda")):
        for name in ("manual_seed", "manual_seed_all", "seed", "seed_all", "set_rng_state", "set_rng_state_all"):
            if hasattr(module, name):
                yield seeds(f"{prefix}.{name}", getattr(module, name))
        for name in ("get_rng_state", "get_rng_state_all"):
            if hasattr(module, name):
                yield reads(f"{prefix}.{name}", getattr(module, name))


def _host_random() -> Iterator[Watched]:
    def draws(op: str, function: Any) -> Watched:
        return Watched("PG604", op, function, f"{op} draws random numbers on the host", own=True)

    in_c = {name: getattr(random.Random, name) for name in ("random", "getrandbits")}
    for name, function in {**vars(random.Random), **in_c}.items():
        if name == "seed":
            yield Watched("PG602", "random.seed", function, "random.seed sets Python's generator inside the step", own=True)
        elif callable(function) and not name.startswith("_") and name not in ("getstate", "setstate", "VERSION"):
            yield draws(f"random.{name}", function)
    yield draws("random.seed", random.Random.__base__.seed)  # type: ignore[union-attr]
    for name, function in vars(random.SystemRandom).items():
        if callable(function) and name in ("random", "getrandbits", "randbytes"):
            yield draws(f"random.SystemRandom.{name}", function)
    yield draws("os.urandom", os.urandom)
    yield draws("uuid.uuid1", uuid.uuid1)
    yield draws("uuid.uuid4", uuid.uuid4)


def _clock() -> Iterator[Watched]:
    def reads(op: str, function: Any) -> Watched:
        return Watched("PG305", op, function, f"{op} reads the clock", own=True, wanted=_is_direct)

    clocks = ("time", "perf_counter", "monotonic", "process_time", "thread_time", "localtime", "gmtime", "ctime", "strftime")
    for name in clocks:
        for one in (name, f"{name}_ns"):
            if hasattr(time, one):
                yield reads(f"time.{one}", getattr(time, one))
    for name in ("now", "utcnow", "today"):
        yield reads(f"datetime.{name}", vars(datetime.datetime).get(name) or getattr(datetime.datetime, name))
    yield reads("date.today", vars(datetime.date)["today"])


def _output() -> Iterator[Watched]:
    def writes(op: str, function: Any, what: str) -> Watched:
        return Watched("PG804", op, function, what, own=True)

    yield writes("print", builtins.print, "the step prints")
    yield writes("input", builtins.input, "the step waits for input")
    yield writes("open", builtins.open, "the step opens a file")
    yield writes("logging", logging.Logger._log, "the step logs")
    yield writes("warnings.warn", warnings.warn, "the step warns")
    yield Watched("PG804", "torch.load", torch.load, "the step reads a file")
    yield Watched("PG804", "write", io.StringIO.write, "the step prints", own=True, by_object=True, wanted=_is_output)
    for kind in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom, io.FileIO):
        yield writes("write", getattr(kind, "write"), "the step writes to a file")
        if "writelines" in vars(kind):
            yield writes("writelines", vars(kind)["writelines"], "the step writes to a file")


def _compiler() -> Iterator[Watched]:
    """Only where somebody uses it: importing it takes seconds."""
    convert = sys.modules.get("torch._dynamo.convert_frame")
    compile_one = getattr(convert, "_compile", None)
    if compile_one is not None:
        yield Watched("PG1005", "torch.compile", compile_one, "a compiled function compiles while the step runs", quiet=True)


def all_watched() -> list[Watched]:
    return [*_tensor(), *_waiting(), *_torch_random(), *_host_random(), *_clock(), *_output(), *_compiler()]


# What a module's calls are told to: (module, "enter" or "leave", its (args, kwargs) or its result, the calling line).
Observer = Callable[[torch.nn.Module, str, Any, Optional[tuple[str, str, int]]], None]
Observers = list[tuple[torch.nn.Module, Observer]]


class Table:
    """What is watched for, by the keys of a PythonWatch. Entries without a rule are notes for somebody who asks."""

    def __init__(self) -> None:
        self.watch = _C.PythonWatch(files.kind_of_file)
        self._watched: list[Watched] = []
        for one in all_watched():
            self.add(one)

    def add(self, one: Watched) -> None:
        flags = (_C.WATCH_QUIET if one.quiet else 0) | (_C.WATCH_SELF if one.by_object else 0)
        # Wrappers of decorators are code that many functions share.
        if self.watch.add(inspect.unwrap(one.callable), len(self._watched), flags):
            self._watched.append(one)

    def catch_up(self) -> None:
        """Looks again for what may have been imported meanwhile."""
        if not any(one.rule == "PG1005" for one in self._watched):
            for one in _compiler():
                self.add(one)

    def of(self, hit: "_C.PythonHit") -> Watched:
        return self._watched[hit.key]

    def observe(self, observers: Observers) -> None:
        """Tells these of calls of their modules."""
        by_module: dict[int, list[Observer]] = {}
        for module, observer in observers:
            by_module.setdefault(id(module), []).append(observer)

        def tell(module: torch.nn.Module, event: str, result: Any, place: Any) -> None:
            for observer in by_module.get(id(module), ()):
                observer(module, event, result, place)

        self.watch.observe_modules([module for module, _ in observers], tell)
