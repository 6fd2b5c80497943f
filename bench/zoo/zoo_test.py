"""The zoo's list, its comparison and its page; and one of its steps, run."""

import ast
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE)]

import cases  # noqa: E402
import table  # noqa: E402
from leaves import digests, first_difference  # noqa: E402


def builders(family):
    """Functions of a family's file that build cases, without importing what it wants."""
    nodes = ast.parse((HERE / f"{family}.py").read_text()).body
    return [node.name for node in nodes if isinstance(node, ast.FunctionDef)
            and [argument.arg for argument in node.args.args] == ["device", "size", "graphed"]]


@pytest.mark.parametrize("family", dict.fromkeys(case.family for case in cases.CASES))
def test_each_listed_case_is_built_in_the_file_of_its_family_and_no_other(family):
    assert builders(family) == [case.name for case in cases.CASES if case.family == family]


def test_the_list_has_what_a_zoo_needs():
    traits = Counter(trait for case in cases.CASES for trait in case.traits)
    assert len(cases.CASES) == len({case.name for case in cases.CASES}) >= 60
    assert traits[cases.READ] >= 6 and traits[cases.COMPILE] >= 12
    assert min(traits[trait] for trait in (cases.SCHEDULER, cases.SCALER, cases.TO)) >= 4


def test_a_bit_is_a_difference_and_not_a_number_is_none():
    left = [torch.tensor([1.0, float("nan")]), {"lr": 0.1}, torch.nn.Linear(2, 2)]
    same = [left[0].clone(), {"lr": 0.1}, left[2]]
    assert first_difference(digests(same), digests(left)) == ""
    same[0][0] = torch.nextafter(same[0][0], torch.tensor(2.0))
    assert first_difference(digests(same), digests(left)) == "[0]"
    assert first_difference(digests([left[0], {"lr": 0.2}, left[2]]), digests(left)) == "[1]['lr']: 0.2 where eager has 0.1"
    left[2](torch.ones(1, 2)).sum().backward()
    before = digests(left[2])
    left[2].weight.grad[0, 0] += 1
    assert first_difference(digests(left[2]), before) == "weight.grad"


def test_a_step_runs_as_its_eager_twin_and_makes_a_row_and_a_page(tmp_path):
    pytest.importorskip("pianola")
    file = tmp_path / "zoo.json"
    ran = subprocess.run([sys.executable, HERE / "run.py", "--case", "neural_ode", "--device", "cpu", "--calls", "8", "--json", file],
                         text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert ran.returncode == 0, ran.stdout
    (row,) = json.loads(file.read_text())["results"][0]["cases"]
    assert (row["zoo"]["replayed"], row["zoo"]["calls"], row["zoo"]["how"]) == (5, 8, "1 graphs (step)")
    text = table.page(file)
    assert "**1 of 1 static steps replay and are bit-equal (100 %); 0 of all computed something else, 0 failed.**" in text
    assert "| `neural_ode` | static | 5 of 8 | equal |" in text


def test_the_page_tells_misses_with_their_reason(tmp_path):
    zoo = {"family": "vision", "kind": "static", "source": "somebody's", "traits": [], "device": "cpu", "size": "small", "calls": 8}
    rows = [{"case": "quickstart", "zoo": zoo | {"replayed": 0, "reasons": ["it reads\n  where: here"], "said": [], "differs": {}}},
            {"case": "mixup", "zoo": zoo | {"crashed": "ended with status -11", "trace": ""}}]
    file = tmp_path / "zoo.json"
    file.write_text(json.dumps({"machine": {"processor": "one", "torch": "2"}, "command": "", "results": [{"cases": rows}]}))
    text = table.page(file)
    assert "| `quickstart` | static | it reads |" in text and "| `mixup` | static | ended with status -11 |" in text
    assert "**0 of 2 static steps" in text and "1 failed.**" in text
    assert f"Of the zoo's {len(table.cases.CASES)} these were not run: `mnist_adadelta`, " in text


def test_the_page_compares_with_the_best_of_the_others(tmp_path):
    zoo = {"family": "vision", "kind": "static", "source": "somebody's", "traits": [], "device": "cuda", "size": "small", "calls": 8,
           "replayed": 6, "reasons": [], "said": [], "differs": {}, "compiled": ["compiled: Net"],
           "lanes": ["a replay of the rebuilt graph took 9.1 us, of the captured one 9.0 us: less than 3 % faster"]}
    times = {table.EAGER: 100, table.PIANOLA: 20, table.GRAPH: 30, table.CALLABLES: 50, table.COMPILE: 12, table.AUTO: 10}
    slow = times | {table.PIANOLA: 90, table.GRAPH: 81, table.AUTO: 90}
    rows = [{"case": case, "zoo": zoo, "contenders": [{"contender": way, "median": time, "ratio": time / 100} for way, time in those.items()]}
            for case, those in (("quickstart", times), ("mixup", slow))]
    file = tmp_path / "zoo.json"
    file.write_text(json.dumps({"machine": {"processor": "one", "torch": "2"}, "command": "", "results": [{"cases": rows}]}))
    text = table.page(file)
    better, best = "the better of torch.cuda.graph and make_graphed_callables", 'the best of these and torch.compile(mode="reduce-overhead")'
    assert f"| `{table.PIANOLA}` | {better} | bound by launches | 1 | 1.50x | `quickstart`: 1.50x |" in text
    assert f"| `{table.PIANOLA}` | {better} | others | 1 | 0.56x | `mixup`: 0.56x |" in text
    assert f"| `{table.AUTO}` | {best} | bound by launches | 1 | 1.20x | `quickstart`: 1.20x |" in text
    assert "- `mixup`: compiled: Net" in text
    assert "| a replay of the rebuilt graph took # us, of the captured one # us: less than # % faster | 2 |" in text
