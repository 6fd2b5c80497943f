"""What goes wrong while setting up ends in one sentence that says what to do."""

import os
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest
import setup

SCRIPT = Path(setup.__file__)
HERE = {name: shutil.which(name) for name in (*setup.COMMANDS, setup.FORMATTER)}


@pytest.fixture
def path_without(tmp_path, monkeypatch):
    """Makes a PATH that holds our tools but those named."""
    def make(*left_out, **scripts):
        for name, real in HERE.items():
            if real and name not in left_out:
                (tmp_path / name).symlink_to(real)
        for name, text in scripts.items():
            script = tmp_path / name.replace("_", "-")
            script.unlink(missing_ok=True)
            script.write_text(f"#!/bin/sh\n{text}\n")
            script.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
    return make


@pytest.fixture
def scratch_tree(tmp_path, monkeypatch):
    """Points the script at an empty project."""
    root = tmp_path / "project"
    root.mkdir()
    monkeypatch.setattr(setup, "ROOT", root)
    monkeypatch.setattr(setup, "VENV", root / ".venv")
    monkeypatch.setattr(setup, "LOG", root / "build" / "setup.log")
    return root


def run(*arguments, **environment):
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True,
                          env={**os.environ, **environment})


def test_a_machine_that_has_everything_is_left_alone():
    ran = run("--given", "--tests")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_given_names_every_missing_tool_and_its_package(path_without):
    path_without("cmake", "ninja")
    ran = run("--given")
    assert ran.returncode == 1
    assert ran.stderr == ("make: cmake and ninja are missing: install with `apt-get install cmake ninja-build`, "
                          "or leave PYTHON out and make does it.\n")


def test_the_formatter_is_needed_for_tests_only(path_without):
    path_without(setup.FORMATTER)
    assert run("--given").returncode == 0
    assert "clang-format-14 is missing" in run("--given", "--tests").stderr


def test_without_a_compiler_its_headers_are_missing_too(path_without):
    path_without("g++")
    assert set(setup.missing_tools()) == {"g++", *setup.HEADERS}


def test_a_header_that_the_compiler_does_not_find_is_missing(monkeypatch):
    monkeypatch.setitem(setup.HEADERS, "no/such.hpp", "libno-such-dev")
    assert setup.missing_headers() == ["no/such.hpp"]


def test_the_headers_of_another_python_are_named_by_their_package(path_without, monkeypatch, tmp_path):
    path_without()
    monkeypatch.setattr(setup.sysconfig, "get_path", lambda name: str(tmp_path))
    assert setup.missing_tools() == {"Python.h": "python3-dev"}


def test_a_package_needs_no_tests(path_without, monkeypatch):
    path_without("nm", "ccache")
    monkeypatch.setattr(setup, "missing_headers", lambda wanted: [header for header in wanted if "mock" in header])
    assert setup.missing_tools()["gmock/gmock.h"] == "libgmock-dev"
    assert setup.missing_for_package() == {}


def test_an_old_cmake_is_refused(path_without):
    path_without(cmake="echo cmake version 3.22.1")
    assert run("--given").stderr == (
        "make: cmake 3.22.1 is too old: Pianola needs 3.25 or newer, as in Debian 12 and Ubuntu 24.04.\n")


def test_an_interpreter_without_torch_is_refused(monkeypatch):
    monkeypatch.setattr(setup, "missing_modules", lambda modules: {})
    monkeypatch.setattr(setup.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(setup.SetupError, match="has no torch: install it there, name another interpreter"):
        setup.check_given(tests=False)


def test_without_apt_the_packages_are_named(path_without):
    path_without("cmake")
    with pytest.raises(setup.SetupError, match="cmake is missing and there is no apt-get here: .*apt-get install cmake"):
        setup.install_system()


def test_without_root_and_sudo_the_command_is_named(path_without, monkeypatch):
    path_without("cmake", apt_get="exit 1")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(setup.SetupError, match="cmake is missing and to install needs root: run `apt-get install cmake`"):
        setup.install_system()


def test_sudo_is_used_where_there_is_one(path_without, monkeypatch):
    path_without(apt_get="exit 1", sudo="exit 1")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "stdin", open(os.devnull))
    assert setup.installer({"cmake": "cmake"}) == ["sudo", "-n", "apt-get"]


def test_an_apt_that_fails_says_what_to_check(path_without, scratch_tree, monkeypatch):
    path_without("cmake", apt_get="echo Temporary failure resolving; exit 100")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(setup.SetupError, match=r"could not install cmake \(see build/setup.log\): check the network"):
        setup.install_system()
    assert "Temporary failure" in setup.LOG.read_text()


def test_too_little_disk_is_seen_before_anything_is_made(scratch_tree, monkeypatch):
    usage = namedtuple("Usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, 3 * 2**30))
    with pytest.raises(setup.SetupError, match="has 3.0 GiB free but torch with its CUDA libraries needs 8: free some space"):
        setup.install_requirements(setup.REQUIREMENTS)
    assert not setup.VENV.exists()


def test_pip_without_network_says_what_to_do(scratch_tree, monkeypatch):
    python = setup.VENV / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\ncase "$*" in *install*) echo "ERROR: No matching distribution"; exit 1;; esac\n')
    python.chmod(0o755)
    with pytest.raises(setup.SetupError, match="could not fill .venv: check the network and run make again, or use a Python"):
        setup.install_requirements(setup.REQUIREMENTS)
    assert not setup.is_installed(setup.REQUIREMENTS)


def test_a_full_disk_is_told_from_a_missing_network():
    assert "free some space" in setup.pip_failure("ERROR: [Errno 28] No space left on device")


def test_a_complete_venv_is_not_touched(scratch_tree, monkeypatch):
    python = setup.VENV / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    setup.installed_from(setup.REQUIREMENTS).write_text(setup.REQUIREMENTS.read_text())
    monkeypatch.setattr(setup, "run_logged", lambda *_, **__: pytest.fail("something was run"))
    setup.install_requirements(setup.REQUIREMENTS)
