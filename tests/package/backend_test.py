"""What goes wrong when the package is built ends in one sentence that says what to type."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python" / "build_backend"))

import pianola_backend as backend  # noqa: E402
import pianola_metadata  # noqa: E402


def lacks(monkeypatch, *modules):
    there = backend.is_there
    monkeypatch.setattr(backend, "is_there", lambda module: module not in modules and there(module))


def sentence(hook, *arguments):
    with pytest.raises(SystemExit) as refused:
        hook(*arguments)
    return refused.value.code


def test_pip_with_isolation_says_what_to_type(tmp_path):
    pytest.importorskip("pip")
    ran = subprocess.run([sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-index", "-w", tmp_path, ROOT],
                         capture_output=True, text=True)
    assert ran.returncode != 0
    assert ("pianola: Pianola is built for the torch that is installed, and pip's isolated build environment has none: "
            "use `pip install --no-build-isolation .` where torch is installed.") in ran.stderr + ran.stdout
    assert "Traceback" not in ran.stderr + ran.stdout


@pytest.mark.parametrize("hook", [backend.prepare_metadata_for_build_wheel, backend.prepare_metadata_for_build_editable,
                                  backend.build_wheel, backend.build_editable])
def test_torch_and_scikit_build_core_are_asked_for(monkeypatch, hook):
    lacks(monkeypatch, "torch", "scikit_build_core")
    assert sentence(hook, "folder") == (
        f"pianola: Pianola is built for the torch that is installed, and {sys.prefix} has none: use `pip install "
        "'torch>=2.11'`, then `pip install --no-build-isolation .` again.")
    monkeypatch.undo()
    lacks(monkeypatch, "scikit_build_core")
    assert sentence(hook, "folder") == (
        f"pianola: scikit-build-core is not installed in {sys.prefix}: use `pip install 'scikit-build-core>=1.1'`, then "
        "`pip install --no-build-isolation .` again.")


def test_missing_tools_are_named_with_their_packages(monkeypatch, tmp_path):
    monkeypatch.setattr(backend, "is_there", lambda module: True)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert sentence(backend.build_wheel, "folder") == (
        "pianola: CLI/CLI.hpp, cmake, fmt/format.h, g++, ninja and nlohmann/json.hpp are missing: use `apt-get install "
        "cmake g++ libcli11-dev libfmt-dev ninja-build nlohmann-json3-dev` as root, or what your system has for that, then "
        "`pip install --no-build-isolation .` again.")


def test_an_old_tool_is_named(monkeypatch):
    setup = backend.load_setup()
    monkeypatch.setattr(backend, "load_setup", lambda: setup)
    monkeypatch.setattr(setup, "version_of", lambda command: (3, 1))
    assert sentence(backend.require_tools).startswith("pianola: g++ 3.1 is too old: Pianola needs 12 or newer")


def test_the_torch_of_the_interpreter_that_installs_is_used():
    assert backend.with_interpreter(None) == {"cmake.define.PIANOLA_PYTHON": sys.executable}
    other = {"cmake.define.PIANOLA_PYTHON": "/other"}
    assert backend.with_interpreter(other) == other


def test_the_version_is_the_one_of_cmake():
    assert f"project(pianola VERSION {pianola_metadata.version()} " in (ROOT / "CMakeLists.txt").read_text()


def test_the_torch_that_is_required_is_the_one_that_is_there(monkeypatch):
    monkeypatch.setattr(pianola_metadata.metadata, "version", lambda name: "2.12.1+cpu")
    assert pianola_metadata.torch_requirement() == "torch==2.12.*"

    def nothing(name):
        raise pianola_metadata.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(pianola_metadata.metadata, "version", nothing)
    assert pianola_metadata.torch_requirement() == "torch>=2.11"
