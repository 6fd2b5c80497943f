"""`pianola train`: a model of each kind with graphs of each scope."""

import json
import re
from pathlib import Path

import pytest
from test_cli import run

ROOT = Path(__file__).resolve().parents[1]
COMMON = ("--device", "cpu", "--steps", "8")
SCOPES = {
    "dense": ["local: attn", "local: mlp", "local: whole layers", "full_iteration"],
    "moe": ["local: attn", "local: mlp", "local: moe_router", "local: attn, mlp, moe_router", "local: whole layers", "full_iteration",
            "full_iteration, dispatch eager"],
    "hybrid": ["local: mamba", "local: attn", "local: mlp", "local: mamba, attn, mlp", "local: whole layers", "full_iteration"],
    "vision": ["local: attn", "local: mlp", "local: whole layers", "full_iteration"],
}  # fmt: skip
STAYS_EAGER = {("moe", "local: whole layers"): 2, ("moe", "full_iteration"): 0}  # parts that are captured all the same


def rows(*arguments, tmp_path):
    file = tmp_path / "train.json"
    ran = run("train", *COMMON, *arguments, "--json", str(file))
    assert ran.returncode == 0, ran.stderr
    return ran.stdout, json.loads(file.read_text())["runs"]


@pytest.mark.parametrize("model", SCOPES)
def test_each_scope_trains_as_eager(model, tmp_path):
    text, runs = rows("--model", model, tmp_path=tmp_path)
    assert [one["graphs"] for one in runs] == ["none", *SCOPES[model]]
    for one in runs[1:]:
        assert one["equal"] == "bit-equal"
        assert one["captured"] == STAYS_EAGER.get((model, one["graphs"]), one["parts"]), text
        assert one["replays"] == 5 * one["captured"]


def test_experts_of_fixed_capacity_are_graphs_as_a_whole(tmp_path):
    _, runs = rows("--model", "moe", "--moe-expert-capacity-factor", "1.25", tmp_path=tmp_path)
    of = {one["graphs"]: one for one in runs}
    assert of["local: moe"]["captured"] == 2 and of["local: whole layers"]["captured"] == 4 and of["full_iteration"]["captured"] == 1
    assert all(one["equal"] == "bit-equal" for one in runs[1:])


def test_one_scope_may_be_asked_for(tmp_path):
    _, runs = rows("--cuda-graph-impl", "transformer_engine", "--cuda-graph-scope", "attn,mlp", "--cuda-graph-warmup-steps", "1",
                   tmp_path=tmp_path)  # fmt: skip
    assert [(one["graphs"], one["parts"], one["replays"]) for one in runs[1:]] == [("transformer_engine: attn, mlp", 8, 8 * 7)]
    _, runs = rows("--cuda-graph-impl", "none", tmp_path=tmp_path)
    assert [one["graphs"] for one in runs] == ["none"]


@pytest.mark.parametrize(
    "file, model, name, parts",
    [
        ("dense", "dense", "local: attn, mlp", 8),
        ("moe", "moe", "transformer_engine: attn, moe_router", 6),
        ("moe_fixed_capacity", "moe", "local: attn, moe", 6),
        ("hybrid", "hybrid", "local: mamba, attn", 4),
        ("vision", "vision", "local: whole layers", 6),
        ("full_iteration", "dense", "full_iteration", 1),
    ],
)
def test_the_configurations_that_are_examples_train(file, model, name, parts, tmp_path):
    more = ("--moe-expert-capacity-factor", "1.25") if file == "moe_fixed_capacity" else ()
    _, runs = rows("--model", model, "--config", ROOT / f"examples/configuration/{file}.json", *more, tmp_path=tmp_path)
    (one,) = runs[1:]
    assert (one["graphs"], one["parts"], one["captured"], one["equal"]) == (name, parts, parts, "bit-equal")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--cuda-graph-scope", "mamba"), "the model has no part that is called mamba"),
        (("--model", "moe", "--cuda-graph-scope", "moe"), "CF406: moe can be captured with a fixed capacity only"),
        (("--cuda-graph-impl", "full_iteration", "--cuda-graph-scope", "attn"), "CF102"),
        (("--cuda-graph-scope", "attention"), "expected a list of attn, mlp, moe, moe_router, moe_preprocess, mamba"),
        (("--text", "/nowhere"), "/nowhere"),
        (("--config", ROOT / "examples/configuration/contradictory.json"), "CF402"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, message):
    ran = run("train", *COMMON, *arguments)
    assert ran.returncode == 1 and message in ran.stderr, ran.stderr


def test_a_model_that_is_not_there_is_a_usage_error():
    ran = run("train", "--model", "sparse")
    assert ran.returncode == 2 and re.search("sparse not in", ran.stderr), ran.stderr
