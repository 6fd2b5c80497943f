"""The page of results, its pictures and the table of the README are what the committed results make."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import results_doc


def test_the_page_and_its_pictures_are_what_the_results_make():
    checked = subprocess.run([sys.executable, Path(__file__).with_name("results_doc.py"), "--check"],
                             capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("figure", results_doc.FIGURES, ids=lambda figure: figure.name)
def test_bars_are_as_long_as_their_numbers(figure):
    bars = re.findall(r'<rect x="\d+" y="\d+" width="([\d.]+)".*/>\n<text .*>([\d,.]+) us<', results_doc.picture(figure))
    assert len(bars) == len(figure.cases) * len(figure.bars)
    lengths, values = zip(*((float(length), float(value.replace(",", ""))) for length, value in bars))
    for length, value in bars:
        wanted = max(lengths) * float(value.replace(",", "")) / max(values)
        assert abs(float(length) - wanted) <= max(1.0, 0.1 * wanted)


def test_a_missed_requirement_wants_a_reason():
    with pytest.raises(SystemExit, match="0 reasons why cuda/other"):
        results_doc.missed_row("cuda/other", [("MLP", {"requirement": "faster", "measured": 1, "limit": 2})])


def test_cases_that_missed_the_same_have_one_row():
    benchmark, begin = next(iter(results_doc.REASONS))
    cases = [(name, {"requirement": begin, "measured": measured, "limit": 2}) for name, measured in (("MLP", 3.5), ("GPT", 2.25), ("CNN", 3))]
    row = results_doc.missed_row(benchmark, cases)
    assert row.startswith(f"| `{benchmark}`: MLP, and 2 others | {begin} | 2.250 to 3.500 | 2 | ")
