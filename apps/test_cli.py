"""The program as a user meets it: help, exit codes, messages, JSON. PIANOLA_PROGRAM is the path of the binary."""

import json
import os
import subprocess

import pytest

PROGRAM = os.environ["PIANOLA_PROGRAM"]
TEXT = "Permission is granted to copy, use and change this text, as long as this notice stays with it.\n" * 40


def run(*arguments, cwd=None, gpu=True):
    environment = dict(os.environ)
    if not gpu:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    return subprocess.run(
        [PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=300, cwd=cwd, env=environment
    )


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_the_commands(arguments):
    result = run(*arguments)
    assert result.returncode == 0
    assert result.stderr == ""
    for word in ("Usage: pianola", "demo", "info", "Exit codes"):
        assert word in result.stdout


def test_help_of_a_command_lists_its_options():
    result = run("demo", "--help")
    assert result.returncode == 0
    for option in ("--device", "--text", "--steps", "--seed", "--threads", "--json"):
        assert option in result.stdout


def test_version():
    result = run("--version")
    assert result.returncode == 0
    name, version = result.stdout.split()
    assert name == "pianola"
    assert len(version.split(".")) == 3


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["dance"], ["dance"]),
        (["demo", "--device", "tpu"], ["--device", "tpu"]),
        (["demo", "--steps", "0"], ["--steps"]),
        (["demo", "--steps", "-5"], ["--steps"]),
        (["demo", "--steps", "many"], ["--steps", "many"]),
        (["demo", "--threads", "0"], ["--threads"]),
        (["demo", "--colour"], ["--colour"]),
        (["info", "now"], ["now"]),
    ],
)
def test_a_wrong_command_line_is_one_sentence_and_a_hint(arguments, words):
    result = run(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    message, hint = result.stderr.splitlines()
    assert message.startswith("pianola: ")
    assert all(word in message for word in words)
    command = arguments[0] if arguments[0] in ("demo", "info") else None
    assert hint == (f"Try 'pianola {command} --help'." if command else "Try 'pianola --help'.")


def refused(*arguments, **kwargs):
    result = run("demo", "--steps", "2", *arguments, **kwargs)
    assert result.returncode == 1
    assert result.stderr.startswith("pianola: ")
    assert "step" not in result.stdout, "refused before the training"
    return result.stderr


def test_a_missing_text_is_named(tmp_path):
    path = tmp_path / "none.txt"
    assert f"cannot read the text '{path}'" in refused("--device", "cpu", "--text", path)


def test_an_empty_text_is_refused(tmp_path):
    path = tmp_path / "empty.txt"
    path.touch()
    assert f"the text '{path}' is empty" in refused("--device", "cpu", "--text", path)


def test_a_short_text_is_refused(tmp_path):
    path = tmp_path / "short.txt"
    path.write_text("too short")
    assert "the text has 9 characters, and at least" in refused("--device", "cpu", "--text", path)


def test_a_json_file_that_cannot_be_written_is_refused_before_the_training(tmp_path, text):
    path = tmp_path / "none" / "out.json"
    assert f"cannot write '{path}'" in refused("--device", "cpu", "--text", text, "--json", path)


def test_cuda_without_a_device_is_refused():
    assert "there is no CUDA device" in refused("--device", "cuda", gpu=False)


def test_info_is_text():
    result = run("info", gpu=False)
    assert result.returncode == 0
    for word in ("torch", "Backends", "tape", "cuda", "Devices", "cpu"):
        assert word in result.stdout


def test_info_is_json():
    result = run("info", "--json", gpu=False)
    assert result.returncode == 0
    info = json.loads(result.stdout)
    assert {"pianola", "torch", "cuda_runtime", "cuda_driver", "threads", "backends", "devices"} <= info.keys()
    backends = {row["backend"]: row["usable"] for row in info["backends"]}
    assert backends["tape"] == "yes"
    assert backends["cuda"].startswith("no: ")
    assert info["devices"][0]["device"] == "cpu"
    assert run("--version").stdout == f"pianola {info['pianola']}\n"


def test_demo_trains_twice_with_equal_bits(tmp_path, text):
    out = tmp_path / "demo.json"
    arguments = ["demo", "--steps", "20", "--device", "cpu", "--text", text, "--json", out]
    result = run(*arguments)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert "bit-equal" in result.stdout
    assert "\x1b" not in result.stdout
    report = json.loads(out.read_text())
    assert report["command"] == " ".join(["pianola", *map(str, arguments)])
    assert report["comparison"]["equal"] is True
    assert report["comparison"]["tensors"] > 100
    assert report["comparison"]["first_difference"] is None
    losses = report["losses"]
    assert len(losses["eager"]) == 20
    assert losses["eager"] == losses["replay"]
    assert losses["eager"][-1] < losses["eager"][0]
    assert [row["run"] for row in report["runs"]] == ["eager", "replay"]
    assert all(row["steps_per_s"] > 0 and row["host_us_per_step"] > 0 for row in report["runs"])
    assert report["graph"]["backend"] == "tape"
    assert report["graph"]["draws_random_numbers"] is True
    assert report["machine"]["torch"]
    assert len(report["sample"]) > 100


def test_demo_learns_one_step_and_a_text_beyond_ascii(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("déjà vu — naïve façade\n" * 20, encoding="utf-8")
    out = tmp_path / "demo.json"
    result = subprocess.run(
        [PROGRAM, "demo", "--steps", "1", "--device", "cpu", "--text", path, "--json", out],
        capture_output=True,  # as bytes: an untrained model writes no UTF-8
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(out.read_text(encoding="utf-8"))["comparison"]["equal"] is True


def test_bench_hands_over_to_the_benchmarks():
    result = run("bench", "--list", "--device", "cpu", gpu=False)
    assert result.returncode == 0, result.stderr
    assert "cpu/tape_training_step" in result.stdout.split()
