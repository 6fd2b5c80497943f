"""The page of the Python API is what the docstrings make."""

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

import python_api_doc
import pytest


def test_the_page_is_what_the_docstrings_make():
    checked = subprocess.run([sys.executable, Path(__file__).with_name("python_api_doc.py"), "--check"],
                             capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


@pytest.fixture
def package(tmp_path):
    (tmp_path / "_C.pyi").write_text(textwrap.dedent('''
        class Graph:
            """Base."""
            size: int
            """In bytes."""
            def replay(self, *sources) -> None:
                """Runs
                it."""
            def reset(self) -> None:
                """Of the base."""
        '''))
    (tmp_path / "optim.py").write_text("")
    (tmp_path / "_graph.py").write_text(textwrap.dedent('''
        from ._C import _C
        class Graph(_C.Graph):
            """Work.

            Args:
                device, stream: where it
                    runs.
                **options: others.
            """
            def __init__(self, device=None, *, stream="own", **options): ...
            def reset(self, hard: bool = False) -> None:
                """Of its own."""
        def free(graph, /, count: int = 1): ...
        '''))
    (tmp_path / "__init__.py").write_text('from ._graph import Graph, free\n__all__ = ["Graph", "free"]\n')
    return python_api_doc.Package(tmp_path)


def test_a_class_has_the_members_of_the_one_that_it_extends(package):
    assert python_api_doc.entry(package, "Graph") == textwrap.dedent("""\
        ### Graph

        `Graph(device=None, *, stream='own', **options)`

        Work.

        **Args**

        - `device`, `stream`: where it
          runs.
        - `**options`: others.

        - `reset(hard=False)`: Of its own.
        - `size`: In bytes.
        - `replay(*sources)`: Runs it.
        """)


def test_functions_are_shown_as_they_are_called(package):
    assert python_api_doc.entry(package, "free") == "### free\n\n`free(graph, count=1)`\n"
    assert isinstance(package["free"], ast.FunctionDef)


def test_a_name_that_is_nowhere_is_told(package):
    with pytest.raises(SystemExit, match="where is 'gone'"):
        package["gone"]
