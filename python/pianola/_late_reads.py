"""Numbers that a step reads from tensors and only returns: `return loss.item()`. A replay reads them when it is over.

A warm-up call reads as it always does, and it is noted what comes out. A captured run asks no device: item() copies the tensor,
which is part of the graph, and answers with a LateNumber. The function may return that, and first calculate with it and with
plain numbers; the calculation is kept, and made again after each replay. Whatever else is done with it ends the capture, since
its outcome would be frozen. What was kept has to give what the last warm-up call returned, from the values that it read.
float() and int() give nothing but Python's own numbers: those count where the code returns them at once.

Where replays check reads (islands="auto"), the function may also ask: whether a number is larger than another one, whether it is
finite. A captured run answers as the last warm-up call, and a replay asks again at that place: where the answer is another one, the
call is made eagerly.
"""

import dis
import math
import operator
import sys
import threading
import weakref
from collections import Counter
from functools import partial
from types import FrameType
from typing import Any, Callable, NamedTuple, NoReturn, Optional, Sequence, TypeVar

import torch
from torch.amp.grad_scaler import GradScaler

from . import _host_parts
from ._audit.files import TORCH, kind_of_file
from ._decisions import Decision, Decisions, block_of
from ._errors import refuse
from ._load import _C
from ._numbers import Expression, is_followed
from ._recording import users_line
from ._references import more_in_a_frame
from ._replaced import Replaced
from ._returned_calls import is_returned
from ._structure import Structure, of_result, taken_apart

_NUMBERS = (bool, int, float, complex)
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


class Seen(NamedTuple):
    """What a warm-up call read, and the numbers that it returned."""

    values: list[Any]
    returned: list[Any]
    before: Optional[list[Any]] = None  # values that the call before read, where that is known

    def varies(self, read: int) -> bool:
        """Whether two calls read different numbers there."""
        before = self.before
        return before is not None and (len(before) != len(self.values) or _bits(before[read]) != _bits(self.values[read]))


# --- What stands for a number ---


class _Value(NamedTuple):
    """What was read, as an index of the reads."""

    read: int


class _Result(NamedTuple):
    function: Callable[..., Any]
    operands: tuple[Any, ...]


def _calculate(node: Any, values: Any) -> Any:
    if type(node) is _Value:
        return values[node.read]
    if type(node) is _Result:
        return node.function(*(_calculate(one, values) for one in node.operands))
    return node  # a plain number


def _reads_in(node: Any) -> set[int]:
    if type(node) is _Value:
        return {node.read}
    return set().union(*map(_reads_in, node.operands)) if type(node) is _Result else set()


class LateNumber:
    """A number that is not known before the replay. It takes itself for one of the class that it will have."""

    __slots__ = ("_node", "_sample", "_answers", "_where", "__weakref__")

    def __init__(self, node: Any, sample: Any, answers: "Answers", where: str) -> None:
        self._node = node
        self._sample = sample  # what it was in the last warm-up call
        self._answers = answers
        self._where = where
        answers.handed_out.append(weakref.ref(self))

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._sample)

    def __getattr__(self, name: str) -> Any:
        if not hasattr(self._sample, name):
            raise AttributeError(f"{type(self._sample).__name__!r} object has no attribute {name!r}")
        return getattr(_known(self), name)


def _known(number: LateNumber) -> Any:
    """Its value, where that is asked for: nobody knows it in a captured run."""
    if number._answers.is_over:  # kept by somebody whom the refusal did not stop
        return number._sample
    if number._answers.may_check(number):  # that it is this one
        number._answers.check(number._node, number._sample, number._where)
        return number._sample
    number._answers.offence = number._answers.offence or number._where
    _refuse(number._where)


def _refuse(where: str) -> NoReturn:
    refuse(
        "aten::item returns a value of a tensor to the host, which is not allowed during capture",
        "keep the value on the device (torch.where, masked arithmetic, fixed shapes), or leave this part out of the capture",
        where=where,
        kind="CaptureError",
        rule="PG101",
    )


_OPERATORS = ("BINARY_", "INPLACE_", "UNARY_", "CALL_INTRINSIC_1")
_OPERANDS = (LateNumber, bool, int, float, type(None))


def _is_operator(frame: FrameType) -> bool:
    """Whether this frame is in an operator, not in a function of C that may treat Python's own numbers otherwise: from Python
    3.12 on, sum() adds floats up with more digits than theirs."""
    return dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith(_OPERATORS)


def _calculates(function: Callable[..., Any], is_operator: bool = True) -> Callable[..., Any]:
    def method(self: LateNumber, *others: Any) -> Any:
        answers = self._answers
        is_known_way = not is_operator or _is_operator(sys._getframe(1))
        if answers.is_over or not is_known_way or not all(type(one) in _OPERANDS for one in others):
            return function(_known(self), *others)
        operands = (self, *others)
        sample = function(*(one._sample if type(one) is LateNumber else one for one in operands))
        nodes = tuple(one._node if type(one) is LateNumber else one for one in operands)
        return LateNumber(_Result(function, nodes), sample, answers, self._where)

    return method


class Truth:
    """What a comparison of a scaler's scales gave: for an `if` whose block replays can leave out."""

    __slots__ = ("_node", "_outcome", "_number", "__weakref__")

    def __init__(self, node: _Result, outcome: bool, number: LateNumber) -> None:
        self._node = node
        self._outcome = outcome
        self._number = number
        number._answers.handed_out.append(weakref.ref(self))

    def __bool__(self) -> bool:
        answers, frame = self._number._answers, sys._getframe(1)
        block = None if answers.is_over else block_of(frame, self._outcome)
        if block is None:
            _known(self._number)  # in a captured run it is refused
            return self._outcome
        answers.decisions.taken.append(Decision(self._node, self._outcome, self._number._where, frame, block))
        return self._outcome


def _compares(name: str) -> Callable[..., Any]:
    function = getattr(operator, name)

    def method(self: LateNumber, other: Any) -> Any:
        answers = self._answers
        if answers.is_over or type(other) not in _OPERANDS:
            answers.met_followed = answers.met_followed or is_followed(other)
            return getattr(_known(self), f"__{name}__")(other)
        is_late = type(other) is LateNumber
        node = _Result(function, (self._node, other._node if is_late else other))
        outcome = function(self._sample, other._sample if is_late else other)
        is_compared = dis.opname[(frame := sys._getframe(1)).f_code.co_code[frame.f_lasti]] == "COMPARE_OP"
        if is_compared and answers.may_decide_on(self, other):
            return Truth(node, outcome, self)
        return answers.checked(node, outcome, self)

    return method


def _asks(name: str) -> Callable[..., Any]:
    def method(self: LateNumber, *others: Any) -> Any:
        return getattr(_known(self), name)(*others)

    return method


def _is_true(self: LateNumber) -> bool:
    return bool(self._answers.checked(_Result(bool, (self._node,)), bool(self._sample), self))


def _swapped(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda one, other: function(other, one)


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    _function = getattr(operator, _name)
    setattr(LateNumber, f"__{_name}__", _calculates(_function))
    setattr(LateNumber, f"__r{_name}__", _calculates(_swapped(_function)))
for _name in ("neg", "pos"):
    setattr(LateNumber, f"__{_name}__", _calculates(getattr(operator, _name)))
for _function in (abs, round):
    setattr(LateNumber, f"__{_function.__name__}__", _calculates(_function, is_operator=False))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(LateNumber, f"__{_name}__", _compares(_name))
setattr(LateNumber, "__bool__", _is_true)
for _name in ("hash", "float", "int", "complex", "index", "str", "repr", "format",
              "divmod", "rdivmod", "trunc", "floor", "ceil", "and", "rand", "or", "ror", "xor", "rxor", "lshift", "rlshift",
              "rshift", "rrshift", "invert", "reduce", "reduce_ex"):  # fmt: skip
    setattr(LateNumber, f"__{_name}__", _asks(f"__{_name}__"))
setattr(LateNumber, "__array_ufunc__", None)  # NumPy leaves such operations to the other operand


# --- Reads ---


Reads = TypeVar("Reads", bound="_Reads")


class _Reads:
    """Is told of each item() of this thread while it is entered, if the user's code or a package calls it on a tensor of the
    step's device: that of its first input, or another one that it moves this to."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._outer: Optional[_Reads] = None

    def __enter__(self: Reads) -> Reads:
        _replaced.__enter__()
        self._outer, _here.reads = _here.reads, self
        return self

    def __exit__(self, *exception: Any) -> None:
        _here.reads = self._outer
        _replaced.__exit__()

    def takes(self, tensor: Any, frame: FrameType) -> bool:
        if type(tensor) not in _PLAIN_TENSORS or _host_parts.is_open() or _C.is_in_island():
            return False
        if kind_of_file(frame.f_code.co_filename) & TORCH and not _is_of_scaler(frame):
            return False
        with torch._C.DisableTorchFunction():  # modes of the user's are not to see the question
            is_there = tensor.device.type == self._device or (self._device == "cpu" and not tensor.is_cpu)
            is_plain = tensor.layout is torch.strided and not tensor.is_quantized and tensor.numel() == 1
            return is_there and is_plain and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)

    def read(self, original: Callable[..., Any], tensor: torch.Tensor, of_scaler: bool = False) -> Any:
        raise NotImplementedError


def _is_of_scaler(frame: FrameType) -> bool:
    """Whether it asks for a scaler's scale: a step may decide on that whether its schedulers go on."""
    return frame.f_code is GradScaler.get_scale.__code__


class _Here(threading.local):
    reads: Optional[_Reads] = None


_here = _Here()


def _item(original: Callable[..., Any]) -> Callable[..., Any]:
    def item(self: Any, *args: Any, **kwargs: Any) -> Any:
        reads, frame = _here.reads, sys._getframe(1)
        if reads is None or args or kwargs or not reads.takes(self, frame):
            return original(self, *args, **kwargs)
        return reads.read(original, self, _is_of_scaler(frame))

    return item


def _by_builtin(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def number(self: Any) -> Any:
        reads, frame = _here.reads, sys._getframe(1)
        if reads is None or not reads.takes(self, frame) or not is_returned(frame, name):
            return original(self)
        return reads.read(original, self)

    return number


def _by_math(original: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def ask(number: Any) -> bool:
        if type(number) is not LateNumber or number._answers.is_over:
            return original(number)
        return bool(number._answers.checked(_Result(original, (number._node,)), original(number._sample), number))

    return ask


_replaced = Replaced(
    [
        (torch.Tensor, "item", _item),
        *((torch.Tensor, f"__{one}__", partial(_by_builtin, one)) for one in ("float", "int")),
        *((math, one, _by_math) for one in ("isfinite", "isinf", "isnan")),
    ]
)
_STAND_INS: dict[Any, Callable[[], Any]] = {  # objects of their own
    torch.Tensor.__float__: lambda: float("nan"),
    torch.Tensor.__int__: lambda: int("9" * 30),
}


class _Copied(NamedTuple):
    """What the graph leaves for a read: what comes after it may write into the tensor."""

    tensor: torch.Tensor  # without its history
    copy: torch.Tensor


def _copied(tensor: torch.Tensor) -> _Copied:
    with torch._C.DisableTorchFunction():
        tensor = tensor.detach()
        return _Copied(tensor, tensor.clone())


class Notes(_Reads):
    """The reads of a warm-up call.

    Args:
        checks: whether replays check what is asked of them.
    """

    def __init__(self, device: str, checks: bool = False) -> None:
        super().__init__(device)
        self._checks = checks
        self._values: list[Any] = []
        self._scales: set[int] = set()  # of scalers, by number of the read: what is done with them the captured run tells

    def read(self, original: Callable[..., Any], tensor: torch.Tensor, of_scaler: bool = False) -> Any:
        value = _C.read_late(original, tensor)
        _copied(tensor)  # as in the captured run
        if of_scaler:
            self._scales.add(len(self._values))
        self._values.append(value)
        return value

    def has_overflowed(self) -> bool:
        """Whether a scaler's scale fell: the step of its optimizer was left out, and what hangs on that."""
        scales = [self._values[i] for i in sorted(self._scales)]
        return any(now < before for before, now in zip(scales, scales[1:]))

    def seen(self, result: Any) -> Optional[Seen]:
        """None: a number went elsewhere than into the result. Where it was only looked at (a comparison), or is one of those
        that Python has one object of, nobody can tell before the captured run."""
        times = Counter(id(leaf) for leaf in taken_apart(result)[0] if type(leaf) in _NUMBERS or is_followed(leaf))
        others = [i for i in range(len(self._values)) if i not in self._scales]
        read = {id(self._values[i]) for i in others}
        if not self._checks and times.keys() <= set(map(id, self._values)) and not read <= times.keys():
            return None
        for i in others:
            expected = 2 + times[id(self._values[i])]  # the list, this call
            if self._values[i] is result:
                expected += 1 + more_in_a_frame()
            if type(self._values[i]) is float and sys.getrefcount(self._values[i]) > expected:
                return None
        return Seen(self._values, _numbers_of(taken_apart(result)[0]))


def _numbers_of(leaves: list[Any]) -> list[Any]:
    return [_number_of(leaf) for leaf in leaves if type(leaf) in (*_NUMBERS, LateNumber, Expression) or is_followed(leaf)]


def _number_of(leaf: Any) -> Any:
    if type(leaf) is LateNumber:
        return leaf._sample
    return None if type(leaf) is Expression or is_followed(leaf) else leaf  # None: it is calculated from the arguments


class _Read(NamedTuple):
    original: Callable[..., Any]
    copied: _Copied
    where: str
    of_scaler: bool


class Answers(_Reads):
    """Answers the reads of a captured run.

        answers = Answers("cuda", seen)
        with answers:
            answers.take(run())
        return answers.result()

    Args:
        seen: what the last warm-up call read; None: all reads stay what they are.
        checks: whether replays check what is asked of them.
    """

    def __init__(self, device: str, seen: Optional[Seen], checks: bool = False) -> None:
        super().__init__(device if seen is not None else "")
        self.checks = checks
        self.met_followed = False  # a read was compared with a number among the arguments, which changes
        self._checked: set[int] = set()  # reads
        self._seen = seen
        self._reads: list[_Read] = []
        self._stand_ins: dict[int, tuple[Any, int]] = {}  # numbers of Python's, by id, and the index of the read
        self._last_place = ""
        self._result: Any = None
        self.decisions = Decisions()
        self.handed_out: list[weakref.ref] = []
        self.offence = ""
        self.is_over = False

    def __enter__(self) -> "Answers":
        self._decisions_before = _host_parts.deciding(self.decisions)
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        super().__exit__()
        _host_parts.deciding(self._decisions_before)
        self.decisions.end()
        if exception[0] is None:
            return
        self._end()
        if self._last_place and issubclass(exception[0], TypeError):  # torch took an object for none of its numbers
            _refuse(self._last_place)

    def read(self, original: Callable[..., Any], tensor: torch.Tensor, of_scaler: bool = False) -> Any:
        assert self._seen is not None
        index, where = len(self._reads), users_line()
        if index == len(self._seen.values):
            self.offence = self.offence or where
            _refuse(where)
        self._reads.append(_Read(original, _copied(tensor), where, of_scaler))
        self._last_place = where
        make = _STAND_INS.get(original)
        if make is None:
            return LateNumber(_Value(index), self._seen.values[index], self, where)
        stand_in = make()
        self._stand_ins[id(stand_in)] = (stand_in, index)
        return stand_in

    def may_decide_on(self, *numbers: Any) -> bool:
        reads = set().union(*(_reads_in(one._node) for one in numbers if type(one) is LateNumber))
        return all(self._reads[read].of_scaler for read in reads)

    def checked(self, node: _Result, outcome: Any, number: LateNumber) -> Any:
        """What is asked of a number, which replays ask again."""
        if not self.checks or self.is_over:
            _known(number)  # refused in a captured run
            return outcome
        self.check(node, outcome, number._where)
        return outcome

    def may_check(self, number: LateNumber) -> bool:
        """Whether replays may find this very number again."""
        assert self._seen is not None
        return self.checks and not any(self._seen.varies(read) for read in _reads_in(number._node))

    def check(self, node: Any, outcome: Any, where: str) -> None:
        reads = sorted(_reads_in(node))
        originals = [self._reads[i].original for i in reads]

        is_same = _comparison_with(outcome)

        def is_so(copies: list[torch.Tensor]) -> bool:
            values = {i: read(copy) for i, read, copy in zip(reads, originals, copies)}
            try:
                return is_same(_calculate(node, values))
            except Exception:  # the call raises it eagerly
                return False

        check = _check_of_one(node, originals[0], is_same) if len(reads) == 1 else None
        copied = [self._reads[i].copied for i in reads]
        tensors, copies = [one.tensor for one in copied], [one.copy for one in copied]
        if not _C.check_in_replays(check or is_so, tensors, copies, f"what the step reads ({where})"):
            self.offence = self.offence or where
            _refuse(where)
        self._checked.update(reads)

    def take(self, result: Any) -> None:
        """What the run returned."""
        self._result = result
        self.decisions.end()
        if self.offence or self.decisions.offence:
            _refuse(self.offence or self.decisions.offence)
        if self._reads:
            leaves, nesting = taken_apart(result)
            leaves = list(map(self._late, leaves))
            self._check(leaves)
            if self.decisions.taken or any(type(leaf) is LateNumber for leaf in leaves):
                self._result = self._taken_apart(leaves, nesting)

    def _late(self, leaf: Any) -> Any:
        if id(leaf) not in self._stand_ins:
            return leaf
        index = self._stand_ins[id(leaf)][1]
        assert self._seen is not None
        return LateNumber(_Value(index), self._seen.values[index], self, self._reads[index].where)

    def result(self) -> Any:
        """The same, or a Returned. Nobody else may hold what the run returned."""
        self._end()
        if any(number() is not None for number in self.handed_out):
            _refuse(self._last_place)
        return self._result

    def _end(self) -> None:
        """Who keeps a number now keeps no memory of the graph."""
        self.is_over = True
        self._reads = []

    def _check(self, leaves: list[Any]) -> None:
        assert self._seen is not None
        returned = set().union(*(_reads_in(leaf._node) for leaf in leaves if type(leaf) is LateNumber))
        for index, read in enumerate(self._reads):
            is_dropped = self.checks and read.original not in _STAND_INS  # result() sees that nobody keeps it
            if index not in returned and index not in self._checked and not read.of_scaler and not is_dropped:
                _refuse(read.where)
        numbers = _numbers_of(leaves)
        expected = self._seen.returned
        if len(self._reads) != len(self._seen.values) or len(numbers) != len(expected):
            _refuse(self._last_place)
        pairs = [(one, other) for one, other in zip(numbers, expected) if one is not None and other is not None]
        if any(_bits(one) != _bits(other) for one, other in pairs):
            _refuse(self._last_place)

    def _taken_apart(self, leaves: list[Any], nesting: Any) -> "Returned":
        """With a copy in the place of each number."""
        tensors: list[torch.Tensor] = []
        numbers: dict[int, Any] = {}
        for i, leaf in enumerate(leaves):
            if type(leaf) is LateNumber:
                numbers[len(tensors)] = leaf._node
                leaves[i] = self._reads[min(_reads_in(leaf._node))].copied.copy
            if isinstance(leaves[i], torch.Tensor):
                tensors.append(leaves[i])
        return Returned(Structure(leaves, nesting).rebuild(tensors), numbers, self._reads, self.decisions.taken)


def _bits(number: Any) -> tuple[type, str]:
    return type(number), repr(number)  # NaN is NaN, and -0.0 is not 0.0


# --- Checks of replays, which they make between the answer of the device and what it does next ---


def _comparison_with(outcome: Any) -> Callable[[Any], bool]:
    if type(outcome) is bool:
        return lambda number: number is outcome
    bits = _bits(outcome)
    return lambda number: _bits(number) == bits


def _check_of_one(
    node: Any, read: Callable[..., Any], is_same: Callable[[Any], bool]
) -> Optional[Callable[[list[torch.Tensor]], bool]]:
    """Of what is asked of one number: alone, or with a plain one behind it. None: it is more than that."""
    if type(node) is not _Result or type(node.operands[0]) is not _Value or len(node.operands) > 2:
        return None
    function, others = node.function, node.operands[1:]
    if others and type(others[0]) not in _NUMBERS:
        return None

    def check(copies: list[torch.Tensor]) -> bool:
        value = read(copies[0])
        try:
            return is_same(function(value, *others))
        except Exception:  # the call raises it eagerly
            return False

    return check


# --- What a captured run returns ---


class Returned(NamedTuple):
    """A result that has numbers."""

    tree: Any  # with a tensor in the place of each
    numbers: dict[int, Any]  # what is to be calculated, by the index of that tensor
    reads: list[_Read]
    decisions: list[Decision]


class LateStructure(Structure):
    """The structure of such a result, whose tensors are followed by copies of those that were read."""

    __slots__ = ("tree", "numbers", "reads", "decisions")

    def __init__(
        self, tree: Structure, numbers: dict[int, Any], reads: list[Callable[[torch.Tensor], Any]], decisions: list[Decision]
    ) -> None:
        for name in ("spec", "size", "frozen", "tensors"):
            setattr(self, name, getattr(tree, name))
        self.outline = None  # nobody else can put it together
        self.tree = tree
        self.numbers = numbers
        self.reads = reads
        self.decisions = decisions

    def rebuild(self, tensors: Sequence[torch.Tensor], numbers: tuple = ()) -> Any:
        leaves = list(tensors[: self.tensors])
        values = [read(copy) for read, copy in zip(self.reads, tensors[self.tensors :])]
        for i, node in self.numbers.items():
            leaves[i] = _calculate(node, values)
        for decision in self.decisions:
            is_made = bool(_calculate(decision.node, values)) == decision.outcome
            for step in decision.steps:
                step.follow(is_made)
        return self.tree.rebuild(leaves, numbers)

    def same(self, other: Structure) -> bool:
        return super().same(other) and isinstance(other, LateStructure) and (self.numbers, self.reads) == (other.numbers, other.reads)

    def difference(self, now: Structure, names: Sequence[str] = ()) -> str:
        found = super().difference(now, names)
        return "the numbers that it reads" if found == "nothing" else found


def apart(result: Any) -> tuple[list[torch.Tensor], Structure]:
    """The tensors of what a captured run returned, and the rest of it. @see of_result"""
    if type(result) is not Returned:
        return of_result(result)
    leaves, structure = of_result(result.tree)
    copies = [one.copied.copy for one in result.reads]
    return [*leaves, *copies], LateStructure(structure, result.numbers, [one.original for one in result.reads], result.decisions)
