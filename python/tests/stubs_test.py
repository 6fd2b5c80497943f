"""Types and texts of the extension module: mypy finds nothing wrong, the stub is what the module makes, and help() speaks."""

import inspect
import pydoc
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import pianola
from pianola import _C

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import stub  # noqa: E402


def of_requirements():
    pinned = re.search(r"^torch==(\d+\.\d+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    return torch.__version__.startswith(pinned[1] + ".")


only_here = pytest.mark.skipif(not of_requirements(), reason="types are written for the torch of requirements.txt")


@only_here
def test_mypy_finds_nothing_wrong():
    if find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    ran = subprocess.run([sys.executable, "-m", "mypy", "--cache-dir=/dev/null"], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@only_here
def test_the_stub_is_what_the_module_makes():
    assert stub.STUB.read_text() == stub.made(), "run tools/stub.py"


@pytest.mark.parametrize("types", [
    "class Graph:\n    def captures(step: int): ...",
    "class Graph:\n    def capture(stop: int): ...",
    "class GraphedCache:\n    def run(self, key: int) -> None: ...",
    "class Grph:\n    text: str",
])  # fmt: skip
def test_a_type_that_is_told_of_nothing_is_refused(types):
    with pytest.raises(SystemExit, match="types.pyi: the module has no (Graph.capture|GraphedCache.run|Grph)"):
        stub.Stub(_C, types).text()


def told():
    """(path, object) of all that a user may ask help() about."""
    for name, member in vars(_C).items():
        if inspect.isclass(member):
            yield name, member
            for inner, one in vars(member).items():
                if inner[0] not in "_@" and inner not in ("name", "value") and not isinstance(one, member):
                    yield f"{name}.{inner}", one
        elif inspect.isbuiltin(member):
            yield name, member


def text_of(member):
    """Its docstring without the signature."""
    doc = inspect.getdoc(member) or ""
    return doc if inspect.isclass(member) or isinstance(member, property) else " ".join(text for _, text in stub.overloads(member))


def test_everything_has_a_docstring():
    assert [path for path, member in told() if not text_of(member).strip()] == []


def test_help_speaks():
    graph = pydoc.render_doc(pianola.Graph, renderer=pydoc.plaintext)
    for text in ("Runs what was captured, on the current stream", "Whether there is something to replay", "Where it runs"):
        assert text in graph
    assert "Warms up, records `step`" in pydoc.render_doc(_C.Graph.capture, renderer=pydoc.plaintext)


def errors():
    return [one for one in vars(_C).values() if inspect.isclass(one) and issubclass(one, _C.Error)]


@pytest.mark.parametrize("error", [one for one in errors() if one is not _C.Error])
def test_errors_have_the_attributes_that_the_stub_tells(error):
    with pytest.raises(error) as raised:
        _C.raise_error(error.__name__, "what", "where", "fix")
    attributes = [one.partition(":")[0] for one in stub.Stub(_C, stub.TYPES.read_text()).added["Error"]]
    assert list(raised.value.__dict__) == attributes
    assert str(raised.value) == "what\n  where: where\n  fix:   fix"


def test_the_package_is_typed():
    assert (Path(pianola.__file__).parent / "py.typed").exists()
