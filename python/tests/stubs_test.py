"""Type information: mypy finds nothing wrong, and _C.pyi names exactly what the module has."""

import ast
import inspect
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import pianola
from pianola import _C

ROOT = Path(__file__).resolve().parents[2]
STUB = ROOT / "python" / "pianola" / "_C.pyi"
# What pybind11 gives to enums and classes for itself, and what every class has.
OF_PYBIND11 = {"__entries", "_pybind11_conduit_v1_"}


def test_mypy_finds_nothing_wrong():
    if find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    ran = subprocess.run([sys.executable, "-m", "mypy", "--cache-dir=/dev/null"], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def is_dunder(name):
    return name.startswith("__") and name.endswith("__")


def is_told(name):
    """Whether a stub has to name it: dunder methods are checked the other way round only."""
    return not is_dunder(name) and not name.startswith("@py") and name not in OF_PYBIND11


def in_stub(body):
    """{name: kind} of a module or class; kind is "class", "function", "static", "property" or "value"."""
    found = {}
    for node in body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = "class"
        elif isinstance(node, ast.FunctionDef):
            decorators = [getattr(one, "attr", None) or one.id for one in node.decorator_list]  # of `name.setter`: "setter"
            kinds = {"property": "property", "setter": "property", "staticmethod": "static"}
            found[node.name] = kinds.get("".join(decorators), "function")
        elif isinstance(node, ast.AnnAssign):
            found[node.target.id] = "value"
    return found


def kind_of(value):
    if inspect.isclass(value):
        return "class"
    if isinstance(value, property):
        return "property"
    if isinstance(value, staticmethod) or (inspect.isbuiltin(value) and not inspect.ismodule(value.__self__)):
        return "static"
    return "function" if inspect.isroutine(value) else "value"


def in_module(owner):
    return {name: "function" if inspect.isbuiltin(value) and inspect.ismodule(owner) else kind_of(value)
            for name, value in vars(owner).items() if is_told(name)}  # fmt: skip


def classes():
    return {node.name: node for node in ast.parse(STUB.read_text()).body if isinstance(node, ast.ClassDef)}


def is_error(name):
    return issubclass(getattr(_C, name), BaseException)


def test_the_stub_has_what_the_module_has():
    assert in_stub(ast.parse(STUB.read_text()).body) == in_module(_C)


@pytest.mark.parametrize("name", sorted(classes()))
def test_the_stub_has_what_the_class_has(name):
    real, stub = getattr(_C, name), in_stub(classes()[name].body)
    bases = [ast.unparse(base).rpartition(".")[2] for base in classes()[name].bases] or ["pybind11_object"]
    assert bases == [base.__name__ for base in real.__bases__]
    assert {dunder for dunder in stub if is_dunder(dunder)} <= vars(real).keys()
    if not is_error(name):  # the attributes of errors are the objects' own
        assert {member: kind for member, kind in stub.items() if is_told(member)} == in_module(real)


def test_errors_have_the_attributes_that_the_stub_tells():
    told = in_stub(classes()["Error"].body)
    for name in [name for name in classes() if is_error(name) and name != "Error"]:
        with pytest.raises(getattr(_C, name)) as raised:
            _C.raise_error(name, "what", "where", "fix")
        assert raised.value.__dict__.keys() == told.keys()
        assert str(raised.value) == "what\n  where: where\n  fix:   fix"


def arguments_in_stub(function):
    """"self, *, a, b=, *inputs"."""
    arguments = function.args
    required = len(arguments.args) - len(arguments.defaults)
    words = [one.arg + ("=" if i >= required else "") for i, one in enumerate(arguments.args)]
    if arguments.vararg:
        words.append("*")
    elif arguments.kwonlyargs:
        words.append("*")
    words += [one.arg + ("=" if default else "") for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults)]
    words += [f"**{arguments.kwarg.arg}"] if arguments.kwarg else []
    return words


def signatures(function):
    """Those in the docstring: several where the function is overloaded."""
    assert function is not None, "the module does not have it"
    overloads = re.findall(r"^\d+\. (.*)$", function.__doc__, re.MULTILINE) if "Overloaded function." in function.__doc__ else []
    return overloads or [function.__doc__]


def arguments_in_module(signature):
    """The same from a signature of the module. pybind11 names what the binding does not name arg0, arg1, ..."""
    signature = signature.partition(" -> ")[0]
    parts = re.split(r", (?=\*|\w+:)", signature.partition("(")[2].rstrip(")"))
    return [re.sub(r":.*? = .*$", "=", part, flags=re.DOTALL) if " = " in part else part.partition(":")[0]
            for part in parts if part and part != "/"]  # fmt: skip


def functions():
    for node in ast.parse(STUB.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node, getattr(_C, node.name, None)
        if isinstance(node, ast.ClassDef):
            for method in node.body:
                # Dunder methods of enums and str() have the arguments that Python gives them.
                is_own = isinstance(method, ast.FunctionDef) and in_stub([method])[method.name] in ("function", "static")
                if is_own and (method.name == "__init__" or not is_dunder(method.name)):
                    yield f"{node.name}.{method.name}", method, getattr(getattr(_C, node.name, None), method.name, None)


@pytest.mark.parametrize("name, told, real", [pytest.param(*one, id=one[0]) for one in functions()])
def test_the_stub_names_the_arguments(name, told, real):
    ours = arguments_in_stub(told)
    overloads = [[word.replace("*args", "*") for word in arguments_in_module(one)] for one in signatures(real)]
    # The unnamed, arg0 and so on, have whatever name the stub gives them.
    fitting = [
        expected
        for expected in overloads
        if len(ours) == len(expected)
        and all(one == other or re.fullmatch(r"arg\d+", other) for one, other in zip(ours, expected))
    ]
    assert fitting, (ours, overloads)


def test_the_package_is_typed():
    assert (Path(pianola.__file__).parent / "py.typed").exists()
