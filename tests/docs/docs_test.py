"""The README, CONTRIBUTING.md and the pages of docs/ say what is so, and lead where they say.

Every line that begins with `$ ` in a ```console block is run from the root of the repository, the built program on the
PATH, and has to succeed. A block after `<!-- not run: reason -->` is left out. A ```cpp block after
`<!-- example: examples/NAME.cpp -->` has to equal the text between the `// [readme]` lines of that file.

The ```python blocks of a page are run in order, on the CPU, in one namespace, `<!-- not run: reason -->` left out. A
```text block right after one has to be what that one printed.
"""

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [page for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]
         if page.exists()]
LISTS = sorted((ROOT / "bench/results").glob("**/README.md"))  # of figures, with links and nothing to run
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


def programs(text):
    """[(code, its output or None)] of the Python blocks."""
    found, last_end = [], None
    for block in BLOCK.finditer(text):
        comment = (block["comment"] or "").strip()
        if block["language"] == "python" and not comment.startswith("not run:"):
            found.append((block["body"], None))
            last_end = block.end()
        elif block["language"] == "text" and found and not comment and not text[last_end : block.start()].strip():
            found[-1] = (found[-1][0], block["body"])
    return found


# Runs [code] of its input in one namespace, and writes [output] to the file it was told. Messages that name a line call
# each block script.py.
RUN_BLOCKS = """
import contextlib, io, json, linecache, sys
sys.argv, target = sys.argv[:1], sys.argv[1]
space, outputs = {"__name__": "__main__"}, []
for code in json.load(sys.stdin):
    linecache.cache["script.py"] = (len(code), None, code.splitlines(True), "script.py")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, "script.py", "exec"), space)
    outputs.append(printed.getvalue())
json.dump(outputs, open(target, "w"))
"""


def has_python_package():
    cache = Path(os.environ["PIANOLA_BUILD_DIR"], "CMakeCache.txt").read_text()
    return "PIANOLA_PYTHON_PACKAGE:BOOL=ON\n" in cache and "PIANOLA_SANITIZE:STRING=\n" in cache


def run_blocks(blocks, target):
    """The output of each."""
    build = os.environ["PIANOLA_BUILD_DIR"]
    ran = subprocess.run([sys.executable, "-c", RUN_BLOCKS, str(target)], cwd=target.parent, capture_output=True, text=True,
                         input=json.dumps(blocks), timeout=600,
                         env={**os.environ, "PYTHONPATH": f"{build}/python", "CUDA_VISIBLE_DEVICES": ""})
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return json.loads(target.read_text())


def marked(source):
    """What stands between the `// [readme]` lines."""
    return textwrap.dedent(source.split("// [readme]\n")[1]).rstrip(" ")


def name_of(page):
    return page.relative_to(ROOT).as_posix()


def prose(text):
    """Without fenced blocks."""
    return re.sub(r"^```\w*\n.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(text):
    """What links may lead to in a page: its headings, as GitHub names them, and marks of its own."""
    headings = re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE)
    names = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
    return {*names, *re.findall(r'<a id="([^"]+)">', text)}


def dead_links(page):
    """Links to files that are not there, and to headings that are not."""
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(page.read_text()))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file.read_text())):
            yield target


def from_pages(find):
    return [pytest.param(found, id=f"{name_of(page)}-{number}")
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


@pytest.mark.parametrize("page", [pytest.param(page, id=name_of(page)) for page in PAGES if programs(page.read_text())])
def test_python_blocks_run_and_print_what_is_shown(page, tmp_path):
    if not has_python_package():
        pytest.skip("built without the Python package, or with sanitizers, which want an interpreter built with them")
    blocks = programs(page.read_text())
    outputs = run_blocks([code for code, _ in blocks], tmp_path / "outputs.json")
    for (code, expected), output in zip(blocks, outputs):
        if expected is not None:
            assert output.rstrip("\n") == expected.rstrip("\n"), code


@pytest.mark.parametrize("page", [pytest.param(page, id=name_of(page)) for page in PAGES + LISTS])
def test_links_lead_somewhere(page):
    assert list(dead_links(page)) == []


def test_dead_links_are_found(tmp_path):
    (tmp_path / "other.md").write_text('# A heading: with `code`\n<a id="mark"></a>\n')
    page = tmp_path / "page.md"
    page.write_text("[a](other.md#a-heading-with-code) [b](other.md#mark) [c](#here) [d](https://x.y) `[e](code)`\n\n## Here\n"
                    "[f](gone.md) [g](other.md#gone) [h](#gone)\n")
    assert list(dead_links(page)) == ["gone.md", "other.md#gone", "#gone"]


def test_a_reader_reaches_every_page_from_the_readme():
    reached, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in reached:
            continue
        reached.add(page)
        targets = re.findall(r"\]\(([^)\s#]+\.md)[^)]*\)", page.read_text())
        todo += [file for file in ((page.parent / target).resolve() for target in targets) if file.exists()]
    assert set(PAGES + LISTS) <= reached


def test_the_readme_and_the_guides_are_short():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 120
    assert "```python" in lines[:30]
    guides = {name_of(page): len(prose(page.read_text()).split()) for page in PAGES if page.parent.name == "guide"}
    assert [f"{name}: {words} words" for name, words in guides.items() if words > 1500] == []


# Structs whose fields docs/reference/options.md lists, and the functions of Python that take them.
OPTION_HEADERS = ["pianola/callable/graphed_options.hpp", "pianola/callable/options.hpp", "pianola/graph/options.hpp",
                  "pianola/training/full_iteration_options.hpp", "pianola/parallel/options.hpp"]
OPTION_STRUCTS = ["GraphedOptions", "CallableOptions", "CaptureOptions", "FullIterationOptions", "ParallelOptions"]


def option_fields():
    """Of the structs of the library."""
    for header in OPTION_HEADERS:
        for struct in re.findall(r"^struct (\w+) \{\n(.*?)^\};", (ROOT / header).read_text(), re.DOTALL | re.MULTILINE):
            if struct[0] in OPTION_STRUCTS:
                yield from re.findall(r"^  [\w:<>,() &]+ (\w+) = ", struct[1], re.MULTILINE)


def test_every_option_is_in_the_table():
    fields = sorted(set(option_fields()))
    assert len(fields) > 40
    named = set(re.findall(r"`_?(\w+)(?:=[^`]*)?`", (ROOT / "docs/reference/options.md").read_text()))
    assert [field for field in fields if field not in named] == []


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
        ```python
        print(1)
        ```
        ```text
        1
        ```
        <!-- not run: shown elsewhere -->
        ```python
        print(2)
        ```
        ```python
        print(3)
        ```
        With words between them:
        ```text
        no output
        ```
        """)
    assert list(commands(text)) == ["one   more", "two"]
    assert list(examples(text)) == [("examples/a.cpp", "int a;\n")]
    assert programs(text) == [("print(1)\n", "1\n"), ("print(3)\n", None)]


def test_marked_code_loses_its_indent():
    assert marked("int main() {\n  // [readme]\n  f();\n    g();\n  // [readme]\n}\n") == "f();\n  g();\n"
