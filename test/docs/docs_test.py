"""The README, CONTRIBUTING.md and docs/*.md say what is so.

Every line that begins with `$ ` in a ```console block is run from the root of the repository, the built program on the
PATH, and has to succeed. A block after `<!-- not run: reason -->` is left out. A ```cpp block after
`<!-- example: examples/NAME.cpp -->` has to equal the text between the `// [readme]` lines of that file.
"""

import os
import re
import subprocess
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [page for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]
         if page.exists()]
# A fenced block and the HTML comment right before it.
BLOCK = re.compile(r"(?:^<!--(?P<comment>[^>]*)-->\n+)?^```(?P<language>\w+)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)


def commands(text):
    """The commands to run; a line that ends in a backslash goes on in the next."""
    for block in BLOCK.finditer(text):
        if block["language"] == "console" and not (block["comment"] or "").strip().startswith("not run:"):
            body = block["body"].replace("\\\n", "")
            yield from (line.removeprefix("$ ") for line in body.splitlines() if line.startswith("$ "))


def examples(text):
    """(file, code) of each C++ block that names the file it comes from."""
    for block in BLOCK.finditer(text):
        comment = (block["comment"] or "").strip()
        if block["language"] == "cpp" and comment.startswith("example:"):
            yield comment.removeprefix("example:").strip(), block["body"]


def marked(source):
    """What stands between the `// [readme]` lines."""
    return textwrap.dedent(source.split("// [readme]\n")[1]).rstrip(" ")


def from_pages(find):
    return [pytest.param(found, id=f"{page.name}-{number}")
            for page in PAGES for number, found in enumerate(find(page.read_text()), 1)]


@pytest.mark.parametrize("command", from_pages(commands))
def test_command_succeeds(command):
    build = os.environ["PIANOLA_BUILD_DIR"]
    path = os.pathsep.join([f"{build}/apps", os.environ["PATH"]])
    ran = subprocess.run(["bash", "-c", command], cwd=ROOT, env={**os.environ, "PATH": path},
                         capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, f"$ {command}\n{ran.stdout}{ran.stderr}"


@pytest.mark.parametrize("example", from_pages(examples))
def test_code_is_that_of_the_example(example):
    file, code = example
    assert code == marked((ROOT / file).read_text())


def test_blocks_are_found():
    text = textwrap.dedent("""\
        ```console
        $ one \\
          more
        its output
        $ two
        ```
        <!-- not run: installs packages -->
        ```console
        $ make demo
        ```
        <!-- example: examples/a.cpp -->
        ```cpp
        int a;
        ```
        ```cpp
        int b;
        ```
        """)
    assert list(commands(text)) == ["one   more", "two"]
    assert list(examples(text)) == [("examples/a.cpp", "int a;\n")]


def test_marked_code_loses_its_indent():
    assert marked("int main() {\n  // [readme]\n  f();\n    g();\n  // [readme]\n}\n") == "f();\n  g();\n"
