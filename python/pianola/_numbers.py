"""Numbers that are followed: what a run of a function does with the numbers among its arguments.

In an observed call such a number is a WatchedInt or WatchedFloat: an int or a float to everybody, whose arithmetic gives
further ones. What is compared becomes a guard on the outcome, so that each outcome has graphs of its own; what else is asked
for (a hash, a text, an int) becomes a guard on the value. But C code takes the value of such an object in silence: range(n),
values[n], math.sqrt(x). So a captured run is given StandIns in their place, which only take themselves for numbers: whoever
wants the value has to ask. What a graph depends on is what its capture asked.

A calculation is kept as its text, "(a0 + 1) % 4", in which a0, a1 ... are the arguments: equal texts are equal calculations,
and a compiled text takes a replay least time.
"""

import math
import operator
import re
import struct
import weakref
from types import FunctionType
from typing import Any, Callable, Iterable, Iterator, Optional, Sequence

import torch

from ._load import _C
from ._recording import users_line
from ._replaced import Replaced

# Values that torch treats in ways of their own: what was shown by others tells nothing of them.
_SPECIAL = frozenset({0, 1, 2, 3, 0.5, -1, -2})
_LARGEST = 1 << 62


_RISKY = ("/", "%", "**", "round(", "floor(", "ceil(", "trunc(")  # calculations that may raise


def is_regular(value: Any) -> bool:
    return value not in _SPECIAL and is_small(value)


def is_small(value: Any) -> bool:
    return -_LARGEST < value < _LARGEST  # NaN is not


def single(value: float) -> float:
    """As a tensor of float32 holds it."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


_LONGEST = 400  # of a text: what is calculated in a loop is as long as the loop
_NUMBERS = (bool, int, float)

_NAMES: dict[str, Any] = {
    "__builtins__": {},
    "same": _C.same_value,
    "round": round,
    "abs": abs,
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "is_regular": is_regular,
    "is_small": is_small,
    "sqrt": math.sqrt,
    "single": single,
    "inf": math.inf,
    "nan": math.nan,
}


class Trail:
    """What one run did with the numbers that it was given."""

    def __init__(self) -> None:
        self.outcomes: dict[str, bool] = {}  # of what was compared
        self.values: dict[str, Any] = {}  # of what was asked for
        self.asked: dict[str, str] = {}  # where
        self.risky: dict[str, bool] = {}  # what was calculated, and may raise
        self.given: list[tuple[str, Any]] = []  # what functions of torch were given, one by one, with the value
        self.regular: dict[str, bool] = {}  # what a graph has a slot for, and whether it is calculated with
        self.is_over = False  # who kept a number has a plain one
        self._handed_out: list[weakref.ref] = []

    def watched(self, values: Sequence[Any]) -> list[Any]:
        return [(WatchedInt if type(one) is int else WatchedFloat)(one, f"a{i}", self) for i, one in enumerate(values)]

    def stand_ins(self, values: Sequence[Any]) -> list[Any]:
        return [self._hand_out(StandIn(one, f"a{i}", self)) for i, one in enumerate(values)]

    def result(self, like: Any, value: Any, text: str, operands: Sequence[Any]) -> Any:
        """Of a calculation with a number like this one."""
        if self.is_over:
            return value
        if type(value) not in (int, float) or len(text) > _LONGEST:
            for one in operands:
                self.ask(one)
            return value
        if any(sign in text for sign in _RISKY):
            self.risky[text] = True
        if type(like) is StandIn:
            return self._hand_out(StandIn(value, text, self))
        return (WatchedInt if type(value) is int else WatchedFloat)(value, text, self)

    def decide(self, text: str, outcome: bool) -> None:
        if not self.is_over:
            self.outcomes[text] = outcome

    def ask(self, number: Any) -> None:
        """Its value is asked for: whatever is done with it, no other value will do."""
        if type(number) in _FOLLOWED and not self.is_over and number._text not in self.values:
            self.values[number._text] = number._value
            self.asked[number._text] = users_line()

    def give(self, number: "StandIn") -> int:
        """A function of torch is given it. @return  The index in `given`."""
        self.given.append((number._text, number._value))
        return len(self.given) - 1

    def pin(self, given: int) -> None:
        text, value = self.given[given]
        self.values[text] = value

    def path(self, count: int, table: Sequence[str] = ()) -> Callable[..., Optional[tuple]]:
        """Of the numbers of another call: None where a run would not take the same path with them, else the values of the table.
        It may raise what the calculation raises."""
        terms = [text if outcome else f"not {text}" for text, outcome in self.outcomes.items()]
        terms += [_equals(text, value) for text, value in self.values.items()]
        terms += [f"{'is_regular' if is_operand else 'is_small'}({text})" for text, is_operand in self.regular.items()]
        used = (*terms, *table)
        terms += [f"({text}, True)[1]" for text in self.risky if not any(text in other for other in used)]
        return _compiled(count, f"({''.join(one + ', ' for one in table)}) if {' and '.join(terms) or 'True'} else None")

    def add(self, other: "Trail") -> None:
        """That of another run counts as well."""
        self.outcomes.update(other.outcomes)
        self.values.update(other.values)
        self.asked.update(other.asked)
        self.risky.update(other.risky)
        for text, is_operand in other.regular.items():
            self.regular[text] = self.regular.get(text, False) or is_operand

    def is_kept(self) -> bool:
        """Whether somebody has a number still."""
        return any(one() is not None for one in self._handed_out)

    def _hand_out(self, number: "StandIn") -> "StandIn":
        self._handed_out.append(weakref.ref(number))
        return number


def words(index: int, names: Sequence[str], trails: Sequence[Trail]) -> str:
    """What runs did with an argument: "decides by args[1] % 4 == 0"."""

    def of_it(texts: Iterable[str]) -> list[str]:
        found = [text for text in texts if re.search(rf"\ba{index}\b", text)]
        named = (re.sub(r"\ba(\d+)\b", lambda match: names[int(match[1])], text) for text in found)
        return list(dict.fromkeys(text[1:-1] if text.startswith("(") and text.endswith(")") else text for text in named))

    parts = []
    values = of_it(text for trail in trails for text in trail.values)
    if values:
        asked = [trail.asked[text] for trail in trails for text in trail.asked if re.search(rf"\ba{index}\b", text)]
        parts.append(f"has a graph for each value of {values[0]}" + (f", which {asked[0]} needs" if asked else ""))
    elif of_it(text for trail in trails for text in trail.regular):
        parts.append("is a parameter of the graph")
    decisions = of_it(text for trail in trails for text in trail.outcomes)
    if decisions:
        parts.append(f"decides by {' and by '.join(decisions[:3])}{' and more' if len(decisions) > 3 else ''}")
    return ", and ".join(parts) or "does not matter to the graph"


def _compiled(count: int, text: str) -> Callable[..., Any]:
    return eval(f"lambda {', '.join(f'a{i}' for i in range(count))}: {text}", dict(_NAMES))


def _equals(text: str, value: Any) -> str:
    is_plain = value != 0 and value == value if type(value) is float else "**" not in text
    return f"{text} == {_text(value)}" if is_plain else f"same({text}, {_text(value)})"


def _text(operand: Any) -> str:
    if type(operand) in _FOLLOWED:
        return operand._text
    text = repr(operand)
    return f"({text})" if text.startswith("-") else text


class Expression:
    """Stands for a number in the result of a captured run: what a replay calculates from its own arguments."""

    __slots__ = ("text", "sample")

    def __init__(self, text: str, sample: Any) -> None:
        self.text = text
        self.sample = sample  # what it was

    @classmethod
    def of(cls, number: Any) -> "Expression":
        return cls(number._text, number._value)

    def __eq__(self, other: Any) -> bool:
        return type(other) is Expression and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return repr(self.sample)


def calculation_of(text: str, count: int) -> Callable[..., Any]:
    return _compiled(count, text)


def calculation(expressions: Sequence[Expression], count: int) -> Callable[..., tuple]:
    """Their values, of the arguments of a call."""
    return _compiled(count, f"({''.join(one.text + ', ' for one in expressions)})")


def is_followed(value: Any) -> bool:
    return type(value) in _FOLLOWED


def plain(value: Any) -> Any:
    """The number itself, of one that is followed."""
    return value._value if type(value) in _FOLLOWED else value


# --- What stands for a number ---


class WatchedInt(int):
    def __new__(cls, value: int, text: str, trail: Trail) -> "WatchedInt":
        self = int.__new__(cls, value)
        self._value, self._text, self._trail = value, text, trail
        return self

    _value: int
    _text: str
    _trail: Trail


class WatchedFloat(float):
    def __new__(cls, value: float, text: str, trail: Trail) -> "WatchedFloat":
        self = float.__new__(cls, value)
        self._value, self._text, self._trail = value, text, trail
        return self

    _value: float
    _text: str
    _trail: Trail


class StandIn:
    __slots__ = ("_value", "_text", "_trail", "__weakref__")

    def __init__(self, value: Any, text: str, trail: Trail) -> None:
        self._value = value
        self._text = text
        self._trail = trail

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._value)

    def __getattr__(self, name: str) -> Any:
        if hasattr(self._value, name):
            self._trail.ask(self)
        return getattr(self._value, name)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: tuple = (), kwargs: Optional[dict] = None) -> Any:
        """A function of torch is given it."""
        kwargs = kwargs or {}
        given = [one for one in (*args, *kwargs.values()) if type(one) is StandIn]
        if _may_look(function):
            for one in given:
                one._trail.ask(one)
        return call_given(function, args, kwargs, given)


def _may_look(function: Any) -> bool:
    """Whether a function of torch is Python's own, which may decide by a number; operators only pass it on."""
    inner = getattr(function, "__wrapped__", function)
    return isinstance(inner, FunctionType) and not inner.__name__.startswith("__")


def call_given(function: Callable[..., Any], args: tuple, kwargs: dict[str, Any], given: Sequence[Any]) -> Any:
    """Calls a function of torch. @param given  Those of its arguments, or in them, that its operations are given; the value of
    others may give a shape."""
    sources = [one._trail.give(one) for one in given if not one._trail.is_over]
    ours = set(map(id, given))
    args, kwargs = _without_stand_ins(args, ours), _without_stand_ins(kwargs, ours)
    return _C.given_numbers(sources, function, args, kwargs) if sources else function(*args, **kwargs)


def _without_stand_ins(value: Any, given: set[int]) -> Any:
    if type(value) is StandIn:
        if id(value) not in given:
            value._trail.ask(value)
        return value._value
    if type(value) in (tuple, list):
        return type(value)(_without_stand_ins(one, given) for one in value)
    if type(value) is dict:
        return {key: _without_stand_ins(one, given) for key, one in value.items()}
    if type(value) is slice:
        return slice(*(_without_stand_ins(one, given) for one in (value.start, value.stop, value.step)))
    return value


def _in_index(index: Any) -> Iterator[Any]:
    for one in index if type(index) is tuple else (index,):
        for part in (one.start, one.stop) if type(one) is slice else (one,):
            if type(part) is StandIn:
                yield part


def _indexes(original: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, index: Any, *value: Any) -> Any:
        given = [*_in_index(index), *(one for one in value if type(one) is StandIn)]
        return call_given(original, (self, index, *value), {}, given) if given else original(self, index, *value)

    return method


# A slice asks for an index before torch sees whose it is.
indexing = Replaced([(torch.Tensor, "__getitem__", _indexes), (torch.Tensor, "__setitem__", _indexes)])

_MOST_NUMBERS = 32  # of which a tensor is made by operations
_ENTRIES = (int, float, WatchedInt, WatchedFloat, StandIn)


def _makes(original: Callable[..., Any]) -> Callable[..., Any]:
    """torch.tensor([step] * 4, device=device) takes numbers of Python's own. Operations that fill a tensor give the same bits."""

    def tensor(data: Any, *args: Any, **kwargs: Any) -> Any:
        numbers = data if type(data) in (list, tuple) else [data]
        is_ours = 0 < len(numbers) <= _MOST_NUMBERS and all(type(one) in _ENTRIES for one in numbers) and any(map(is_followed, numbers))
        if not is_ours or args or not kwargs.keys() <= {"dtype", "device"}:
            return original(data, *args, **kwargs)
        dtype = kwargs.get("dtype")
        if dtype is None:
            dtype = torch.int64 if all(type(plain(one)) is int for one in numbers) else torch.get_default_dtype()
        made = dict(dtype=dtype, device=kwargs.get("device"))
        if all(one is numbers[0] for one in numbers):
            return torch.full((len(numbers),) if numbers is data else (), numbers[0], **made)  # type: ignore[arg-type]
        return torch.stack([torch.full((), one, **made) for one in numbers])  # type: ignore[arg-type]

    return tensor


# While a run is given numbers that are followed.
making = Replaced([(torch, "tensor", _makes), (torch, "as_tensor", _makes)])


_FOLLOWED = (WatchedInt, WatchedFloat, StandIn)
_OPERANDS = (*_NUMBERS, *_FOLLOWED, type(None))


def _calculates(function: Callable[..., Any], form: str, swap: bool = False) -> Callable[..., Any]:
    def method(self: Any, *others: Any) -> Any:
        if not all(type(one) in _OPERANDS for one in others):
            return NotImplemented
        operands = (*others, self) if swap else (self, *others)
        value = function(*map(plain, operands))
        return self._trail.result(self, value, form.format(*map(_text, operands)), operands)

    return method


def _compares(function: Callable[..., bool], form: str) -> Callable[..., Any]:
    def method(self: Any, *others: Any) -> Any:
        if not all(type(one) in (*_NUMBERS, *_FOLLOWED) for one in others):
            return NotImplemented
        outcome = function(*map(plain, (self, *others)))
        self._trail.decide(form.format(*map(_text, (self, *others))), outcome)
        return outcome

    return method


def _asks(name: str) -> Callable[..., Any]:
    def method(self: Any, *others: Any) -> Any:
        found = getattr(self._value, name, None)
        if found is None:
            return NotImplemented
        self._trail.ask(self)
        return found(*others)

    return method


def _reduce(self: Any, *protocol: Any) -> Any:
    """Whoever saves it saves a plain number."""
    self._trail.ask(self)
    return type(self._value), (self._value,)


def _round(self: Any, *digits: Any) -> Any:
    return _ROUNDS[len(digits)](self, *digits)


def _divmod(self: Any, other: Any) -> Any:
    quotient = self.__floordiv__(other)
    return quotient if quotient is NotImplemented else (quotient, self.__mod__(other))


def _rdivmod(self: Any, other: Any) -> Any:
    quotient = self.__rfloordiv__(other)
    return quotient if quotient is NotImplemented else (quotient, self.__rmod__(other))


_ROUNDS = (_calculates(round, "round({})"), _calculates(round, "round({}, {})"))
_BINARY = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**"}
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_ASKED = ("hash", "int", "float", "index", "complex", "str", "repr", "format", "and", "rand", "or", "ror", "xor", "rxor", "lshift",
          "rlshift", "rshift", "rrshift", "invert")  # fmt: skip


def _methods() -> dict[str, Callable[..., Any]]:
    found = {}
    for name, sign in _BINARY.items():
        function = getattr(operator, name)
        found[name] = _calculates(function, f"({{}} {sign} {{}})")
        found["r" + name] = _calculates(function, f"({{}} {sign} {{}})", swap=True)
    for name, sign in _COMPARISONS.items():
        found[name] = _compares(getattr(operator, name), f"({{}} {sign} {{}})")
    found["bool"] = _compares(bool, "({} != 0)")
    found["neg"] = _calculates(operator.neg, "(-{})")
    found["pos"] = _calculates(operator.pos, "(+{})")
    for function in (abs, math.floor, math.ceil, math.trunc):
        found[function.__name__] = _calculates(function, f"{function.__name__}({{}})")
    found.update(reduce=_reduce, reduce_ex=_reduce, round=_round, divmod=_divmod, rdivmod=_rdivmod)
    found.update((name, _asks(f"__{name}__")) for name in _ASKED)
    return found


for _name, _method in _methods().items():
    for _class in _FOLLOWED:
        if _class is StandIn or hasattr(_class.__base__, f"__{_name}__"):
            setattr(_class, f"__{_name}__", _method)
setattr(StandIn, "__array_ufunc__", None)  # NumPy leaves such operations to the other operand
