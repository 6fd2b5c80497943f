"""What tools/matrix.py decides by itself; it is tried as a whole by whoever looks at another torch."""

import json
import subprocess

import matrix
import pytest


def test_headers_follow_the_cuda_of_torch():
    assert matrix.cuda_headers({"nvidia-cuda-runtime": "13.2.86", "nvidia-cuda-cccl": "13.3.5.0.6"}) == ["nvidia-cuda-crt==13.2.*"]
    assert matrix.cuda_headers({"nvidia-cuda-runtime": "13.0.96"}) == ["nvidia-cuda-crt==13.0.*", "nvidia-cuda-cccl==13.0.*"]
    assert matrix.cuda_headers({"torch": "2.15.0+cpu"}) == []


def test_what_goes_with_torch_is_not_pinned():
    named = matrix.of_requirements()
    assert any(one.startswith("pytest==") for one in named)
    assert not [one for one in named if one.startswith(("torch", "nvidia"))]


def test_a_new_row_takes_the_place_of_its_own_alone(tmp_path):
    file = tmp_path / "matrix.json"
    row = {"torch": "2.15.0", "compiler": "12.2.0", "passed": 1}
    for one in ({**row, "torch": "2.11.0"}, row, {**row, "compiler": "14.1.0"}, {**row, "passed": 2}):
        matrix.store(file, one)
    assert [(one["torch"], one["compiler"], one["passed"]) for one in json.loads(file.read_text())] == [
        ("2.11.0", "12.2.0", 1), ("2.15.0", "12.2.0", 2), ("2.15.0", "14.1.0", 1)]  # fmt: skip


def test_the_newest_is_the_one_that_cmake_knows():
    known = (matrix.ROOT / "cmake/PianolaTorchVersion.cmake").read_text()
    oldest, *_, newest = matrix.VERSIONS
    assert f"PIANOLA_OLDEST_TORCH {oldest.rpartition('.')[0]})" in known
    assert f"PIANOLA_NEWEST_TORCH {newest.rpartition('.')[0]})" in known


def test_the_newest_torch_is_left_out_where_pip_cannot_get_it_and_a_named_one_is_not(monkeypatch, capsys, tmp_path):
    def no_pip(command, **options):
        return subprocess.CompletedProcess(command, 1 if "pip" in command else 0, "")

    monkeypatch.setattr(matrix, "MATRIX", tmp_path)
    monkeypatch.setattr(matrix, "commit", lambda: "0")
    monkeypatch.setattr(matrix.subprocess, "run", no_pip)
    assert matrix.main(["--newest"]) == 0
    assert capsys.readouterr().out == f"NOT TESTED: pip cannot install torch {matrix.VERSIONS[-1]} here\n"
    with pytest.raises(matrix.NotInstalled):
        matrix.main(["2.13.0"])


def test_a_compiler_tells_the_whole_of_its_version(tmp_path):
    clang = tmp_path / "clang++"
    clang.write_text('#!/bin/sh\n[ "$1" = -dumpversion ] && echo 16.0.6\n')
    clang.chmod(0o755)
    assert matrix.version_of(clang) == "16.0.6"
    assert matrix.version_of("g++").count(".") == 2
    with pytest.raises(SystemExit, match="false does not tell its version"):
        matrix.version_of("false")


def test_the_first_failure_of_a_log_is_shown_without_its_command():
    long = "/usr/bin/c++ " + "x" * 1000
    log = "\n".join(["[1/3] Building a.o", "[2/3] Building b.o", "FAILED: b.o", long, "b.cpp:1: error: no space", "[3/3] Building c.o",
                     "FAILED: c.o"])  # fmt: skip
    assert matrix.first_failure(log) == "FAILED: b.o\nb.cpp:1: error: no space"
    assert matrix.first_failure("FAILED: b.o\nerror: last") == "FAILED: b.o\nerror: last"
    assert matrix.first_failure("ninja: error: loading 'build.ninja'") == "ninja: error: loading 'build.ninja'"
