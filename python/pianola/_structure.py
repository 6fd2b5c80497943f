"""Takes arguments and results apart into tensors and everything else, by torch's pytree, and puts them together again.

The C++ library sees lists of tensors. What else there is (numbers, strings, None, the nesting itself) is frozen in a graph;
a Structure holds it and can say what differs from another call's.
"""

import dataclasses
import datetime
import decimal
import enum
import fractions
import pathlib
import threading
import uuid
import weakref
from typing import Any, Callable, Container, Iterator, NamedTuple, Optional, Sequence

import torch
from torch.utils import _pytree as pytree

from ._errors import refuse
from ._load import _C
from ._numbers import Expression, calculation

Tensor = torch.Tensor


class _Opened:
    """Stands for a dataclass that pytree does not know, while it is taken apart."""

    def __init__(self, value: Any, change: Callable[[Any], Any] = lambda field: field) -> None:
        names = (field.name for field in dataclasses.fields(value))
        self.kind = type(value)
        self.fields = {name: change(getattr(value, name)) for name in names if hasattr(value, name)}


def _open(opened: _Opened) -> tuple[list[Any], Any]:
    return list(opened.fields.values()), (opened.kind, tuple(opened.fields))


def _close(values: Any, context: Any) -> Any:
    kind, names = context
    result = object.__new__(kind)  # __init__ may take other arguments than the fields
    for name, value in zip(names, values):
        object.__setattr__(result, name, value)
    return result


pytree.register_pytree_node(_Opened, _open, _close, serialized_type_name="pianola.dataclass")


class _OpenedObject:
    """Stands for an object of a class that nobody has registered, with the values of its attributes."""

    def __init__(self, kind: type, number: int, attributes: dict[str, Any]) -> None:
        self.kind = kind
        self.number = number  # that links to it have
        self.attributes = attributes


class _Link(NamedTuple):
    """A weak reference to an object that is taken apart, in one of those that it holds."""

    number: int


def _open_object(opened: _OpenedObject) -> tuple[list[Any], Any]:
    return list(opened.attributes.values()), (opened.kind, opened.number, tuple(opened.attributes))


def _open_object_with_keys(opened: _OpenedObject) -> tuple[list[Any], Any]:
    values, context = _open_object(opened)
    return [(pytree.GetAttrKey(name), value) for name, value in zip(opened.attributes, values)], context


class _Loose(threading.local):
    def __init__(self) -> None:
        self.links: list[tuple[Any, str, int]] = []  # of objects that are put together, to those that are not yet


_loose = _Loose()


def _close_object(values: Any, context: Any) -> Any:
    kind, number, names = context
    result = object.__new__(kind)
    vars(result).update(zip(names, values))
    for holder, name, wanted in _loose.links:
        if wanted == number:
            vars(holder)[name] = weakref.ref(result)
    links = [(result, name, value.number) for name, value in zip(names, values) if type(value) is _Link]
    _loose.links = [link for link in _loose.links if link[2] != number] + links
    return result


pytree.register_pytree_node(
    _OpenedObject,
    _open_object,
    _close_object,
    serialized_type_name="pianola.object",
    flatten_with_keys_fn=_open_object_with_keys,
)


class _Opening:
    """Takes objects of one tree apart.

    Each that it takes belongs to the tree alone, which is put together anew at each call. One that is met twice it does not take
    apart, nor one whose class keeps something elsewhere than in attributes, or that holds something of its own that is no value.
    """

    def __init__(self, own: Container[int], with_parts: bool) -> None:
        self._own = own
        self._with_parts = with_parts  # objects with tensors that such objects hold are taken apart as well
        self._numbers: dict[int, int] = {}  # of objects that are met, by their ids
        self._around: list[int] = []  # ids of those that are being taken apart, outermost first

    def open(self, leaf: Any) -> Any:
        if type(leaf) is weakref.ref and id(leaf()) in self._around and id(leaf()) in self._numbers:
            return _Link(self._numbers[id(leaf())])
        if _is_dataclass(leaf) and id(leaf) not in self._around:
            self._around.append(id(leaf))
            opened = _Opened(leaf, lambda field: pytree.tree_map(self.open, field, is_leaf=_is_size))
            self._around.pop()
            return opened
        if not self._may_open(leaf) or id(leaf) in self._numbers or not _is_plain_object(leaf):
            return leaf
        number = self._numbers[id(leaf)] = len(self._numbers)
        self._around.append(id(leaf))
        attributes = {name: pytree.tree_map(self.open, value, is_leaf=_is_size) for name, value in vars(leaf).items()}
        self._around.pop()
        inside = pytree.tree_leaves(attributes)
        is_closed = any(id(one) in self._own and not isinstance(one, (Tensor, *_PLAIN)) for one in inside)  # a method of its own
        is_part = id(leaf) not in self._own
        if is_closed or (is_part and not any(isinstance(one, Tensor) for one in inside)):
            return leaf
        return _OpenedObject(type(leaf), number, attributes)

    def _may_open(self, leaf: Any) -> bool:
        return id(leaf) in self._own or (self._with_parts and bool(self._around))


def opened(tree: Any, own: Container[int], with_parts: bool = False) -> Any:
    """The same, where the objects with these ids are taken apart into their attributes. See _Opening."""
    return pytree.tree_map(_Opening(own, with_parts).open, tree, is_leaf=_is_size) if own else tree


def _is_plain_object(value: Any) -> bool:
    kind = type(value)
    if isinstance(value, (torch.nn.Module, BaseException)) or _is_dataclass(value) or not hasattr(value, "__dict__"):
        return False
    if "__new__" in {name for base in kind.__mro__[:-1] for name in vars(base)}:  # nobody can make one but itself
        return False
    return kind.__basicsize__ == _OpenedObject.__basicsize__ and kind.__itemsize__ == 0 and object in kind.__mro__


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _flatten(tree: Any) -> tuple[list[Any], "Structure"]:
    plain = _C.take_plain_apart(tree)  # calls of graphs are taken apart each time: pytree alone takes 30 us for two tensors
    if plain is None:
        return _flatten_any(tree)
    leaves, outline = plain
    known = _known.get(outline)
    if type(known) is Structure:
        return leaves, known
    if known is None and len(_known) == _MOST_KNOWN:
        _known.clear()
    structure = Structure(leaves, pytree.tree_flatten(tree)[1] if known is None else known, outline)
    _known[outline] = structure.spec if structure.frozen else structure
    return leaves, structure


def _flatten_any(tree: Any) -> tuple[list[Any], "Structure"]:
    leaves, spec = pytree.tree_flatten(tree, is_leaf=_is_size)
    while any(map(_is_dataclass, leaves)):
        tree = pytree.tree_unflatten([_Opened(leaf) if _is_dataclass(leaf) else leaf for leaf in leaves], spec)
        leaves, spec = pytree.tree_flatten(tree, is_leaf=_is_size)
    return leaves, Structure(leaves, spec)


def _is_size(value: Any) -> bool:
    """pytree would make a tuple of it."""
    return type(value) is torch.Size


# Whose values never change, and are equal only to what says the same.
_VALUES = (datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, fractions.Fraction, pathlib.PurePath, uuid.UUID,
           Expression)  # fmt: skip


def equal(one: Any, other: Any) -> bool:
    """Whether two values that are no tensors are the same to a graph: by type, and to the bit.

    An object is only itself, whatever its class says: it may be equal in all but what the function reads.
    """
    return _C.same_value(one, other) or (isinstance(one, _VALUES) and type(one) is type(other) and bool(one == other))


def _same_spec(one: Any, other: Any) -> bool:
    """Of nestings that are equal; their keys may be equal only as numbers are, such as 1 and True."""
    if one is other:
        return True
    if not (one == other) or isinstance(one.context, _KEYS) and not _C.same_value(one.context, other.context):
        return False
    return all(map(_same_spec, _children(one), _children(other)))


def _children(spec: Any) -> list[Any]:
    return spec.children() if callable(getattr(spec, "children", None)) else spec.children_specs


_KEYS = (list, tuple, bool, int, float, complex)


class Structure:
    """All of a tree but its tensors. It never changes: trees of tensors alone that are nested alike share one."""

    __slots__ = ("spec", "outline", "frozen", "size", "tensors", "make")

    def __init__(self, leaves: list[Any], spec: Any, outline: Any = None) -> None:
        self.spec = spec
        self.outline = outline  # of a tree of plain containers
        self.size = len(leaves)
        self.frozen = [(i, leaf) for i, leaf in enumerate(leaves) if not isinstance(leaf, Tensor)]
        self.tensors = self.size - len(self.frozen)
        self.make: Any = None  # puts it together; True: it was once, by pytree

    def rebuild(self, tensors: Sequence[Tensor], numbers: tuple = ()) -> Any:
        """The tree, with these tensors; of a result, with what is calculated from these numbers among the call's arguments."""
        if self.outline is not None:
            return _C.put_plain_together(self.outline, self.frozen, tensors)
        if self.make is True:
            self.make = _maker_of(self)
        if self.make is not None:
            return self.make(tensors, self.frozen)
        self.make = True
        return _unflatten(self, tensors)

    def is_positional(self) -> bool:
        """Whether arguments are tensors and nothing else."""
        args, kwargs = pytree.tree_unflatten([_A_TENSOR] * self.size, self.spec)
        return not self.frozen and not kwargs and all(one is _A_TENSOR for one in args)

    def same(self, other: "Structure") -> bool:
        return self is other or (
            type(self) is type(other)
            and self.size == other.size
            and len(self.frozen) == len(other.frozen)
            and (not self.frozen or all(i == k and equal(a, b) for (i, a), (k, b) in zip(self.frozen, other.frozen)))
            and (self.spec is other.spec or _same_spec(self.spec, other.spec))
        )

    def same_but(self, other: "Structure", exempt: Sequence[int]) -> bool:
        """The same, but for entries of `frozen`."""
        return (
            type(self) is type(other)
            and self.size == other.size
            and len(self.frozen) == len(other.frozen)
            and all(
                i == k and (at in exempt or equal(a, b))
                for at, ((i, a), (k, b)) in enumerate(zip(self.frozen, other.frozen))
            )
            and (self.spec is other.spec or _same_spec(self.spec, other.spec))
        )

    def difference(self, now: "Structure", names: Sequence[str] = ()) -> str:
        """What differs: "kwargs['scale']: captured 2.0, received 3.0"."""
        if not _same_spec(self.spec, now.spec):
            return f"the structure: captured {_outline(self)}, received {_outline(now)}"
        captured, received = dict(self.frozen), dict(now.frozen)
        for i in sorted(captured.keys() | received.keys()):
            one, other = captured.get(i, _A_TENSOR), received.get(i, _A_TENSOR)
            if not equal(one, other):
                return f"{names[i] if i < len(names) else f'leaf {i + 1}'}: captured {one!r}, received {other!r}"
        return "nothing"


class _CalculatedStructure(Structure):
    """Of a result with numbers that are calculated from the call's arguments."""

    __slots__ = ("tree", "calculate")

    def __init__(self, tree: Structure) -> None:
        for name in ("spec", "size", "frozen", "tensors", "make"):
            setattr(self, name, getattr(tree, name))
        self.outline = None  # nobody else can put it together
        self.tree = tree
        self.calculate: Any = None

    def rebuild(self, tensors: Sequence[Tensor], numbers: tuple = ()) -> Any:
        if self.calculate is None:
            expressions = [one for _, one in self.frozen if type(one) is Expression]
            self.calculate = calculation(expressions, len(numbers))
        values = iter(self.calculate(*numbers))
        tree = self.tree
        renewed = Structure.__new__(Structure)
        renewed.spec, renewed.outline, renewed.size = tree.spec, tree.outline, tree.size
        renewed.tensors, renewed.make = tree.tensors, tree.make
        renewed.frozen = [(i, next(values) if type(one) is Expression else one) for i, one in tree.frozen]
        result = renewed.rebuild(tensors)
        tree.make = renewed.make
        return result


def _unflatten(structure: Structure, tensors: Sequence[Tensor], frozen: Any = None) -> Any:
    """By pytree."""
    others = dict(structure.frozen if frozen is None else frozen)
    remaining = iter(tensors)
    leaves = [others[i] if i in others else next(remaining) for i in range(structure.size)]
    return pytree.tree_unflatten(leaves, structure.spec)


_MOST_LEAVES = 256  # of trees that are put together by code of their own


def _maker_of(structure: Structure) -> Callable[[Sequence[Tensor], list[tuple[int, Any]]], Any]:
    """The same by one expression, of the tensors and `frozen`: pytree takes a microsecond or two for each node, at each replay."""
    if structure.size > _MOST_LEAVES:
        return lambda tensors, frozen: _unflatten(structure, tensors, frozen)
    others = {i for i, _ in structure.frozen}
    tensors, frozen = (iter(range(structure.size)) for _ in range(2))
    leaves = (f"f[{next(frozen)}][1]" if i in others else f"t[{next(tensors)}]" for i in range(structure.size))
    names: dict[str, Any] = {}
    try:
        return eval(f"lambda t, f: {_expression(structure.spec, leaves, names)}", names)
    except (SyntaxError, RecursionError, MemoryError):  # nested too deeply for Python's parser
        return lambda tensors, frozen: _unflatten(structure, tensors, frozen)


def _expression(spec: Any, leaves: Iterator[str], names: dict[str, Any]) -> str:
    """In the order of pytree: what is inside comes first."""
    if spec.is_leaf():
        return next(leaves)
    inside = ", ".join(_expression(child, leaves, names) for child in _children(spec))
    if spec.type is tuple and inside:
        return f"({inside},)"
    number = len(names)
    names[f"make{number}"], names[f"context{number}"] = pytree.SUPPORTED_NODES[spec.type].unflatten_fn, spec.context
    return f"make{number}([{inside}], context{number})"


_MOST_KNOWN = 1024
_known: dict[Any, Any] = {}  # of trees of plain containers, by their outline: the Structure, or the spec where values differ


class _ATensor:
    def __repr__(self) -> str:
        return "a tensor"


_A_TENSOR = _ATensor()


class _Star:
    def __repr__(self) -> str:
        return "*"


def _outline(structure: Structure) -> str:
    tree = pytree.tree_unflatten([_Star()] * structure.size, structure.spec)
    if isinstance(tree, tuple) and len(tree) == 2 and isinstance(tree[1], dict):
        positional = [repr(value) for value in tree[0]]
        return f"({', '.join(positional + [f'{name}={value!r}' for name, value in tree[1].items()])})"
    return repr(tree)


def of_arguments(args: tuple, kwargs: dict[str, Any]) -> tuple[list[Tensor], Structure]:
    """The tensors of a call, in order, and the rest of it. The order of keyword arguments does not matter."""
    leaves, structure = _flatten((args, dict(sorted(kwargs.items())) if kwargs else kwargs))
    return _tensors_among(leaves, structure), structure


def _tensors_among(leaves: list[Any], structure: Structure) -> list[Tensor]:
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)] if structure.frozen else leaves


def names_of_arguments(args: tuple, kwargs: dict[str, Any]) -> list[str]:
    """What messages call the leaves: "args[0]['x']", "kwargs['scale']"."""
    paths, _ = pytree.tree_flatten_with_path((args, dict(sorted(kwargs.items()))))
    return [("args", "kwargs")[path[0].idx] + pytree.keystr(path[1:]) for path, _ in paths]  # type: ignore[attr-defined]


_PLAIN = (type(None), bool, int, float, complex, str, bytes, range, slice, type, enum.Enum, torch.dtype, torch.device,
          torch.layout, torch.memory_format, torch.Size, Expression)  # fmt: skip


# A parameter or buffer that is there is returned itself, by replays too, or refused by the library.
_RENEWED = (Tensor, torch.nn.Parameter, torch.nn.Buffer)


def _check_class(result: Tensor) -> None:
    kind = type(result)
    if kind in _RENEWED:
        return
    refuse(
        f"the callable returns a {kind.__module__}.{kind.__qualname__}, a tensor class that replays cannot return",
        "return result.as_subclass(torch.Tensor), and convert it in the caller",
    )


def of_result(result: Any) -> tuple[list[Tensor], Structure]:
    """The tensors of a result, and the rest of it.

    Raises:
        UsageError: it holds an object that may hide tensors: replays could not give them new values.
    """
    leaves, structure = _flatten(result)
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            _check_class(leaf)
            continue
        if isinstance(leaf, _PLAIN) or callable(leaf):
            continue
        refuse(
            f"the callable returns a {type(leaf).__qualname__}, whose tensors a replay cannot renew",
            "return tensors, numbers, and nested lists, tuples, dicts, named tuples or dataclasses of them, or register "
            "the type with torch.utils._pytree.register_pytree_node",
        )
    tensors = _tensors_among(leaves, structure)
    if any(type(one) is Expression for _, one in structure.frozen):
        structure = _CalculatedStructure(structure)
    return tensors, structure


def taken_apart(tree: Any) -> tuple[list[Any], Any]:
    """The leaves of any tree, and its nesting."""
    leaves, structure = _flatten(tree)
    return leaves, structure.spec


def with_leaves(tree: Any, which: Callable[[Any], bool], make: Callable[[Any], Any]) -> Any:
    """The tree, with others in the place of some leaves; itself where there are none."""
    leaves, structure = _flatten(tree)
    if not any(map(which, leaves)):
        return tree
    leaves = [make(one) if which(one) else one for one in leaves]
    return Structure(leaves, structure.spec).rebuild([one for one in leaves if isinstance(one, Tensor)])


def tensors_of(tree: Any) -> list[Tensor]:
    """The tensors of any tree."""
    return _tensors_among(*_flatten(tree))


def shapes_of(tree: Any) -> tuple:
    """Types and shapes of the tensors of any tree."""
    return tuple((one.dtype, tuple(one.shape)) for one in tensors_of(tree))
