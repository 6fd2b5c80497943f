"""The pages of benchmarks are what the committed results make."""

import subprocess
import sys
from pathlib import Path

import benchmark_docs


def test_the_pages_are_what_the_results_make():
    checked = subprocess.run([sys.executable, Path(__file__).with_name("benchmark_docs.py"), "--check"],
                             capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def measured(measure, eager, graph, requirements=()):
    contenders = [{"contender": name, "median": median, "min": median, "spread": 0, "ratio": median / eager, "samples": [median] * 2}
                  for name, median in (("no graph", eager), ("one graph", graph))]
    return {"case": "MLP", "measure": measure, "unit": "us", "iterations_per_sample": 20, "baseline": "no graph",
            "contenders": contenders, "requirements": list(requirements), "table": "MLP"}


def test_cases_of_one_table_are_its_columns():
    wanted = {"requirement": "faster", "met": True, "measured": 4, "limit": 2}
    (text,) = benchmark_docs.cases_text([measured("host time", 40, 10, [wanted]), measured("wall time", 50, 25)])
    assert text == """**MLP** (medians, us; 2 samples of 20 iterations)

|  | host time | ratio | wall time | ratio |
| --- | ---: | ---: | ---: | ---: |
| no graph | 40 | 1.000 | 50 | 1.000 |
| one graph | 10 | 0.250 | 25 | 0.500 |

- host time, faster: 4 (limit 2), met
"""


def test_tables_stand_in_their_order_among_other_cases():
    alone = measured("time", 40, 10)
    del alone["table"]
    texts = benchmark_docs.cases_text([alone, measured("wall time", 50, 25)])
    assert [text.splitlines()[0] for text in texts] == [
        "**MLP** (time; 2 samples of 20 iterations)", "**MLP** (medians, us; 2 samples of 20 iterations)"]
