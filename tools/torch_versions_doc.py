"""Makes docs/reference/torch_versions.md from tests/results/torch_versions.json, which tools/matrix.py writes.

    torch_versions_doc.py            write the page
    torch_versions_doc.py --check    fail if the page is not what the results make
"""

import json
import sys

from generated_pages import ROOT, write_or_check

PAGE = ROOT / "docs/reference/torch_versions.md"
RESULTS = ROOT / "tests/results/torch_versions.json"

HEAD = """# Versions of torch

`tools/torch_versions_doc.py` makes this page from [results](../../tests/results/torch_versions.json) of `tools/matrix.py`.

Pianola is built from one source against torch 2.11 to 2.15, for the torch that is installed. Older ones are refused. A newer one than
is known here builds with a warning, and before the first capture Pianola tries what it [builds on inside torch](../internals/torch.md);
`pianola info --check` does the same and says what has moved.

torch 2.11.0 is what `make test` builds and tests with, and what GPUs are tested with; of 2.15 some tests have
[run on one](../../bench/results/h200/checks/tests_torch_2_15.json). `make test-newest` tests 2.15 in an environment of its own.

Each row is a build with warnings counted, and a run of tests on the CPU, with CUDA's headers and libraries of that torch's wheel. *Rooms*
are the C++ tests of captures, callables, training, several ranks, audit and verify; *core* are these and all tests of the Python
package; *all* is `make test`.

| torch | CUDA | compiler | compiles | links | warnings | tests | passed | failed | skipped | commit |
| --- | --- | --- | --- | --- | ---: | --- | ---: | ---: | ---: | --- |
"""


def name_of(row):
    return "clang " + row["compiler"] if row.get("kind", "g++").startswith("clang") else "g++ " + row["compiler"]


def says(whether):
    return "yes" if whether else "**no**"


def line(row):
    counts = [f"{row[kind]:,}" if kind in row else "" for kind in ("passed", "failed", "skipped")]
    cells = [row["torch"].partition("+")[0], row["cuda"], name_of(row), says(row["compiles"]), says(row["links"]), str(row.get("warnings", "")), row["tests"], *counts,
             f"`{row['commit']}`"]  # fmt: skip
    return f"| {' | '.join(cells)} |\n"


def notes(rows):
    told = [f"- torch {row['torch'].partition('+')[0]}, {name_of(row)}: {row['note']}\n" for row in rows if row.get("note")]
    return "\n" + "".join(told) if told else ""


def pages():
    rows = json.loads(RESULTS.read_text())
    return {PAGE: HEAD + "".join(map(line, rows)) + notes(rows)}


if __name__ == "__main__":
    sys.exit(write_or_check(__doc__, pages))
