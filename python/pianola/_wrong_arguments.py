"""What a TypeError says of a wrong argument: its name, what it has to be, and what came.

pybind11 lists all signatures and prints all arguments. Its text holds what is needed to say it in one sentence.
"""

import ast
import numbers
import os
import re
from typing import Any, Optional

import torch

_LINE = re.compile(r"^\s+\d+\. (.*)$")
_LONGEST = 60


def sentence(text: str, args: tuple, kwargs: dict[str, Any]) -> str:
    """For pybind11's `text`."""
    lines = text.splitlines()
    name, _, _ = lines[0].partition("():")
    is_constructor = "constructor" in lines[0]
    signatures = [line[1] for line in map(_LINE.match, lines) if line]
    if is_constructor:
        name = signatures[0].partition("(")[0].rpartition(".")[2] if signatures else name
    name = name.rpartition(".")[2]
    troubles = []
    for signature in signatures:
        parameters = _parameters(signature)
        if parameters is None:
            continue
        given = args[1:] if is_constructor or (parameters and parameters[0][0] == "self") else args
        trouble = _trouble([one for one in parameters if one[0] != "self"], given, kwargs)
        if trouble:
            troubles.append(trouble)
    if troubles:
        return f"{name}(): {troubles[0]}"
    kinds = [type(one).__qualname__ for one in (args[1:] if is_constructor else args)]
    kinds += [f"{key}={type(one).__qualname__}" for key, one in kwargs.items()]
    return f"{name}() does not take these arguments: ({', '.join(kinds)})"


def _parameters(signature: str) -> Optional[list[tuple[str, str, bool, bool]]]:
    """(name, annotation, has a default, by keyword only); None where it cannot be read."""
    start, end = signature.find("("), signature.rfind(")")
    arrow = signature.rfind(" -> ")
    if arrow > 0:
        end = signature.rfind(")", 0, arrow + 1)
    inside = re.sub(r"= <[^>]*>", "= None", signature[start : end + 1])
    try:
        function = ast.parse(f"def f{inside}: ...").body[0]
    except SyntaxError:
        return None
    assert isinstance(function, ast.FunctionDef)
    plain, keyword = function.args.args, function.args.kwonlyargs
    optional = [False] * (len(plain) - len(function.args.defaults)) + [True] * len(function.args.defaults)
    rows = [(one, has, False) for one, has in zip(plain, optional)]
    rows += [(one, default is not None, True) for one, default in zip(keyword, function.args.kw_defaults)]
    if function.args.vararg is not None or function.args.kwarg is not None:
        return None
    return [(one.arg, ast.unparse(one.annotation) if one.annotation else "", has, only) for one, has, only in rows]


def _trouble(parameters: list[tuple[str, str, bool, bool]], args: tuple, kwargs: dict[str, Any]) -> str:
    positional = [one for one in parameters if not one[3]]
    if len(args) > len(positional):
        return f"takes {len(positional)} positional arguments, got {len(args)}"
    given = dict(zip((one[0] for one in positional), args))
    for name in kwargs:
        if name not in {one[0] for one in parameters}:
            return f"there is no argument {name!r}"
        if name in given:
            return f"{name} was given twice"
    given.update(kwargs)
    for name, kind, has_default, _ in parameters:
        if name not in given:
            if not has_default:
                return f"{name} is missing"
        elif not _fits(kind, given[name]):
            return f"{name} must be {_words(kind)}, got {_shown(given[name])}"
    for name, kind, _, _ in parameters:
        value = given.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and not 0 <= value < 1 << 31:
            return f"{name} is out of range, got {value}"
    return ""


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "a torch.Tensor"
    text = repr(value)
    return text if len(text) <= _LONGEST else f"a {type(value).__qualname__}"


def _is_whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) or hasattr(value, "__index__")


_SIMPLE: dict[str, Any] = {
    "str": lambda value: isinstance(value, (str, bytes)),
    "bool": lambda value: isinstance(value, bool),
    "int": _is_whole,
    "SupportsInt": _is_whole,
    "SupportsIndex": _is_whole,
    "float": lambda value: isinstance(value, numbers.Real),
    "SupportsFloat": lambda value: isinstance(value, numbers.Real),
    "Tensor": lambda value: isinstance(value, torch.Tensor),
    "device": lambda value: isinstance(value, torch.device),
    "Generator": lambda value: isinstance(value, torch.Generator),
    "Callable": callable,
    "PathLike": lambda value: isinstance(value, os.PathLike),
    "bytes": lambda value: isinstance(value, bytes),
    "Stream": lambda value: isinstance(value, torch.Stream),
    "dict": lambda value: isinstance(value, dict),
    "tuple": lambda value: isinstance(value, (tuple, list)),
    "None": lambda value: value is None,
}
_LISTS = ("Sequence", "list", "Iterable", "set")


def _fits(kind: str, value: Any) -> bool:
    """Where that cannot be told: yes."""
    try:
        return _fits_node(ast.parse(kind, mode="eval").body, value)
    except (SyntaxError, ValueError):
        return True


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Name):
        return node.id
    return str(node.value) if isinstance(node, ast.Constant) else ""


def _fits_node(node: ast.AST, value: Any) -> bool:
    if isinstance(node, ast.BinOp):
        return _fits_node(node.left, value) or _fits_node(node.right, value)
    if isinstance(node, ast.Subscript):
        outer = _name(node.value)
        if outer in ("Optional", "Union"):
            options = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            return (outer == "Optional" and value is None) or any(_fits_node(one, value) for one in options)
        if outer in _LISTS:
            if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
                return False
            return not isinstance(value, (list, tuple)) or all(_fits_node(node.slice, one) for one in value)
        if outer == "Mapping" and isinstance(node.slice, ast.Tuple):
            of_key, of_value = node.slice.elts
            return isinstance(value, dict) and all(_fits_node(of_key, key) and _fits_node(of_value, one) for key, one in value.items())
        return bool(_SIMPLE.get(outer, lambda _: True)(value))
    name = _name(node)
    if name in _SIMPLE:
        return bool(_SIMPLE[name](value))
    if name in _LISTS:
        return hasattr(value, "__iter__") and not isinstance(value, (str, bytes))
    if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("pianola."):
        return any(one.__name__ == name for one in type(value).__mro__)
    return True


_ARTICLES = {"SupportsInt": "a whole number", "SupportsIndex": "a whole number", "int": "a whole number",
             "SupportsFloat": "a number", "float": "a number", "bool": "True or False", "None": "None",
             "Callable": "a function", "PathLike": "a path", "str": "a str"}  # fmt: skip


def _words(kind: str) -> str:
    try:
        return _words_of(ast.parse(kind, mode="eval").body)
    except SyntaxError:
        return kind


def _words_of(node: ast.AST) -> str:
    if isinstance(node, ast.BinOp):
        kinds = dict.fromkeys(_words_of(node.left).split(" or ") + _words_of(node.right).split(" or "))
        if "a number" in kinds:  # newer ones of pybind11 write a float as SupportsFloat | SupportsIndex
            kinds.pop("a whole number", None)
        return " or ".join(kinds)
    if isinstance(node, ast.Subscript) and _name(node.value) in _LISTS:
        inner = _words_of(node.slice)
        return "a list of " + re.sub(r"^an? ", "", inner) + ("" if inner.endswith("s") else "s")
    if isinstance(node, ast.Subscript) and _name(node.value) == "Mapping" and isinstance(node.slice, ast.Tuple):
        return "a dict of " + " to ".join(_words_of(one) for one in node.slice.elts)
    if isinstance(node, ast.Subscript):
        return _ARTICLES.get(_name(node.value), f"a {_name(node.value)}")
    name = _name(node)
    plain = ast.unparse(node).replace("pianola._C.", "pianola.")
    return _ARTICLES.get(name, f"a {plain}")
