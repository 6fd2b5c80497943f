"""Makes python/pianola/_C.pyi, the types and texts of the module that the bindings make, from the module itself.

    PYTHONPATH=build/release/python python tools/stub.py

pybind11 writes each function's signature into its docstring. What it cannot say (the arguments of a callback, what a tuple
holds) is in python/bindings/types.pyi: a function that stands there has its signature from there.
"""

import ast
import inspect
import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STUB = ROOT / "python/pianola/_C.pyi"
TYPES = ROOT / "python/bindings/types.pyi"
WIDTH = 120

HEAD = '''"""{doc}"""
# Made by tools/stub.py from the bindings: do not edit.

from os import PathLike
from types import CodeType, FrameType
from typing import Any, Callable, ClassVar, Mapping, NoReturn, Sequence, overload

import torch
from typing_extensions import Self'''

# What pybind11 calls them, which takes more than what a caller should give.
NAMES = {"SupportsInt": "int", "SupportsIndex": "int", "SupportsFloat": "float", "SupportsComplex": "complex"}
BARE = {"object": "Any", "dict": "dict[str, Any]", "list": "list[Any]", "tuple": "tuple[Any, ...]",
        "Callable": "Callable[..., Any]", "function": "Callable[..., Any]"}  # fmt: skip
MODULES = {"pianola", "pianola._C", "collections.abc", "typing", "os", "types", "builtins", "typing_extensions"}


def node(text):
    return ast.parse(text, mode="eval").body


def options_of(union):
    return options_of(union.left) + options_of(union.right) if isinstance(union, ast.BinOp) else [union]


class Plainly(ast.NodeTransformer):
    """Types in the words of a stub: without modules that it imports from, unions by `|`, each option once."""

    def visit_Attribute(self, attribute):
        known = ast.unparse(attribute.value) in MODULES
        return self.visit_Name(ast.Name(attribute.attr)) if known else attribute

    def visit_Name(self, name):
        return node(BARE.get(name.id) or NAMES.get(name.id, name.id))

    def visit_Subscript(self, subscript):
        outer = ast.unparse(subscript.value).rpartition(".")[2]
        inner = self.visit(subscript.slice)
        if outer in ("Optional", "Union"):
            options = [*(inner.elts if isinstance(inner, ast.Tuple) else [inner]), *([node("None")] * (outer == "Optional"))]
            return self.visit_BinOp(node(" | ".join(map(ast.unparse, options))))
        return ast.Subscript(ast.Name(outer), inner)

    def visit_BinOp(self, union):
        options = list(dict.fromkeys(ast.unparse(self.visit(one)) for one in options_of(union)))
        return node(" | ".join(options))


def as_function(signature):
    """The syntax tree of "capture(self: pianola._C.Graph, step: collections.abc.Callable) -> None"."""
    signature = re.sub(r" = <[^<>]*>", " = ...", signature)  # objects that have no literal
    function = ast.parse(f"def {signature}: ...").body[0]
    arguments = function.args
    if arguments.args and arguments.args[0].arg == "self":
        arguments.args[0].annotation = None
    for one in [*arguments.args, *arguments.kwonlyargs]:
        if one.annotation:
            one.annotation = Plainly().visit(one.annotation)
        one.arg = {"arg0": "value"}.get(one.arg, one.arg)
    for one in filter(None, (arguments.vararg, arguments.kwarg)):
        one.annotation = node("Any")
    function.returns = Plainly().visit(function.returns)
    return function


def merge(function, told):
    """With what an entry of types.pyi tells; None where it tells of other arguments."""
    if told.args.args and told.args.args[0].arg == "self":
        return told if len(arguments_of(told)) == len(arguments_of(function)) else None
    known = {one.arg: one for one in [*function.args.args, *function.args.kwonlyargs]}
    if not known.keys() >= {one.arg for one in told.args.args}:
        return None
    for one in told.args.args:
        known[one.arg].annotation = one.annotation
    function.args.vararg = told.args.vararg or function.args.vararg
    function.returns = told.returns or function.returns
    return function


def arguments_of(function):
    """Each as source."""
    arguments = function.args
    defaults = [None] * (len(arguments.args) - len(arguments.defaults)) + arguments.defaults
    rows = [("", *row) for row in zip(arguments.args, defaults)]
    if arguments.vararg:
        rows.append(("*", arguments.vararg, None))
    elif arguments.kwonlyargs:
        rows.append(("*", None, None))
    rows += [("", *row) for row in zip(arguments.kwonlyargs, arguments.kw_defaults)]
    rows += [("**", arguments.kwarg, None)] if arguments.kwarg else []
    return [stars + (ast.unparse(one) if one else "") + (f" = {ast.unparse(default)}" if default else "")
            for stars, one, default in rows]  # fmt: skip


def written(function):
    """As source: on one line where it fits."""
    arguments, result = arguments_of(function), f") -> {ast.unparse(function.returns)}:"
    line = f"def {function.name}({', '.join(arguments)}{result}"
    if len(line) <= WIDTH - 8:
        return line
    return "\n".join([f"def {function.name}(", *(f"    {one}," for one in arguments), result])


def indented(text, by="    "):
    return "\n".join(by + line if line else line for line in text.split("\n"))


def with_doc(head, doc):
    return f"{head} ..." if not doc else f"{head}\n{indented(quoted(doc))}"


def quoted(doc):
    lines = doc.replace("\\", "\\\\").split("\n")
    doc = "\n".join(textwrap.fill(line, WIDTH - 11) for line in lines) + ("\n" if len(lines) > 1 else "")
    return f'"""{doc}"""' if not doc.endswith('"') else f'"""{doc[:-1]}\\""""'


def overloads(callable_):
    """(signature, docstring) of each."""
    text = inspect.getdoc(callable_) or ""
    if "Overloaded function." in text:
        parts = re.split(r"^\d+\. ", text, flags=re.MULTILINE)[1:]
    else:
        parts = [text]
    return [(part.partition("\n")[0].strip(), part.partition("\n")[2].strip()) for part in parts]


class Stub:
    def __init__(self, module, types):
        self.module = module
        self.told = {}  # signatures of types.pyi by "Class.name"
        self.used = set()
        self.added = {}  # attributes of its classes, which no module shows
        for one in ast.parse(types).body:
            for member in one.body if isinstance(one, ast.ClassDef) else [one]:
                if isinstance(member, ast.FunctionDef):
                    owner = f"{one.name}." if member is not one else ""
                    self.told[owner + member.name] = member
                elif isinstance(member, ast.AnnAssign):
                    self.added.setdefault(one.name, []).append(ast.unparse(member))

    def signature(self, path, text):
        function = as_function(text)
        if path in self.told and (merged := merge(function, self.told[path])):
            self.used.add(path)
            function = merged
        function.name = path.rpartition(".")[2]
        return function

    def function(self, path, callable_, decorator=""):
        made = overloads(callable_)
        head = ("@overload\n" if len(made) > 1 else "") + decorator
        return [with_doc(head + written(self.signature(path, signature)), doc) for signature, doc in made]

    def property(self, path, member):
        signature = overloads(member.fget)[0][0].replace("(arg0: ", "(self: ")
        getter = self.signature(path, "get" + signature)
        texts = [with_doc("@property\n" + written(getter), inspect.getdoc(member))]
        if member.fset:
            setter = as_function("set" + overloads(member.fset)[0][0])
            setter.name = getter.name
            texts.append(f"@{getter.name}.setter\n{written(setter)} ...")
        return texts

    def enum(self, class_):
        texts = [quoted(inspect.getdoc(class_).partition("Members:")[0].strip())]
        for name, (_, doc) in vars(class_)["__entries"].items():
            texts.append(f"{name}: ClassVar[{class_.__name__}]" + (f"\n{quoted(doc)}" if doc else ""))
        texts.append(f"__members__: ClassVar[Mapping[str, {class_.__name__}]]")
        texts += ["def __init__(self, value: int) -> None: ...", "def __int__(self) -> int: ...",
                  "def __index__(self) -> int: ...", "@property\ndef name(self) -> str: ...",
                  "@property\ndef value(self) -> int: ..."]  # fmt: skip
        return texts

    def members(self, class_):
        yield quoted(inspect.getdoc(class_))
        yield from self.added.get(class_.__name__, [])
        self.used.add(class_.__name__)
        for name, member in vars(class_).items():
            path = f"{class_.__name__}.{name}"
            if isinstance(member, property):
                yield from self.property(path, member)
            elif name == "__eq__":
                yield "def __eq__(self, other: object) -> bool: ..."
            elif isinstance(member, staticmethod):
                yield from self.function(path, member.__func__, "@staticmethod\n")
            elif inspect.isbuiltin(member):  # pybind11's static methods
                yield from self.function(path, member, "@staticmethod\n")
            elif inspect.isroutine(member) and f"{name}(" in (getattr(member, "__doc__", None) or ""):
                if "self: " in member.__doc__:  # else what every class has
                    yield from self.function(path, member)

    def class_(self, class_):
        bases = [base.__name__ if base.__module__ in MODULES else f"{base.__module__}.{base.__name__}"
                 for base in class_.__bases__ if base.__name__ not in ("pybind11_object", "object")]  # fmt: skip
        head = f"class {class_.__name__}({', '.join(bases)}):" if bases else f"class {class_.__name__}:"
        is_enum = "__entries" in vars(class_)
        members = self.enum(class_) if is_enum else list(self.members(class_))
        return "\n".join([head, indented(members[0]), *([""] * (len(members) > 1)), *map(indented, members[1:])])

    def text(self):
        parts = [HEAD.format(doc=self.module.__doc__)]
        for name, member in vars(self.module).items():
            if inspect.isclass(member):
                parts.append(self.class_(member))
            elif inspect.isbuiltin(member):
                parts.append("\n".join(self.function(name, member)))
            elif not name.startswith("_"):
                parts.append(f"{name}: {type(member).__name__}")
        if unknown := (self.told.keys() | self.added.keys()) - self.used:
            raise SystemExit(f"{TYPES}: the module has no {', '.join(sorted(unknown))}")
        return "\n\n".join(parts) + "\n"


def made():
    from pianola import _C

    return Stub(_C, TYPES.read_text()).text()


if __name__ == "__main__":
    STUB.write_text(made())
