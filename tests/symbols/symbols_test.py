"""The libraries export what is marked PIANOLA_API, and nothing else of their own; libpianola_profiler.so its two entries."""

import os
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ["PIANOLA_BUILD_DIR"])
LIBRARY = BUILD / "libpianola.so"
PROFILE = BUILD / "libpianola_profile.so"
PROFILER = BUILD / "libpianola_profiler.so"

both = pytest.mark.parametrize("library", [LIBRARY, PROFILE], ids=lambda library: library.stem)


@cache
def exported(library):
    """(letter, demangled name) of every dynamic symbol that the library defines."""
    lines = subprocess.run(
        ["nm", "-DC", "--defined-only", library], capture_output=True, text=True, check=True).stdout.splitlines()
    return [re.match(r"\S+ (\S) (.*)", line).groups() for line in lines]


def owner(name):
    """The qualified name that a symbol belongs to: without its kind, return type, template arguments and parameters."""
    name = re.sub(r"^(vtable|typeinfo name|typeinfo|VTT|construction vtable|guard variable|non-virtual thunk"
                  r"|virtual thunk) (for|to) ", "", name)
    while (shorter := re.sub(r"<[^<>]*>", "", name)) != name:
        name = shorter
    name = re.sub(r"(::operator) [\w:]+\(", r"\1(", name)  # a conversion names the type that it makes
    return re.sub(r"\[abi:\w+\]", "", name.split("(")[0].split(" ")[-1])


@cache
def promised():
    """The names marked PIANOLA_API in our headers."""
    text = "\n".join(header.read_text() for header in (ROOT / "pianola").rglob("*.hpp"))
    classes = re.findall(r"\b(?:class|struct|enum class) PIANOLA_API (\w+)", text)
    functions = re.findall(r"PIANOLA_API (?!\w+ final\b)[^;{(]*?(operator\W+|\w+)\(", text)
    return {*classes, *functions}


@both
def test_the_library_exports_something(library):
    assert any(owner(name).startswith("pianola::") for _, name in exported(library))


@both
def test_our_symbols_are_marked_as_api(library):
    ours = {owner(name) for _, name in exported(library) if owner(name).startswith("pianola::")}
    leaked = {name for name in ours if not promised() & set(name.split("::"))}
    assert not leaked


def test_nothing_is_there_twice():
    def strong(library):
        return {name for letter, name in exported(library) if letter not in "WVu" and owner(name).startswith("pianola::")}

    assert not strong(LIBRARY) & strong(PROFILE)


@both
def test_nothing_of_detail_leaks(library):
    assert not [name for _, name in exported(library) if "::detail" in owner(name) and owner(name).startswith("pianola::")]


@both
def test_nothing_of_the_libraries_inside_leaks(library):
    # Weak ones are tables of exception classes, which their authors mark as visible so that a catch finds them.
    assert not [name for letter, name in exported(library) if re.match(r"(fmt|nlohmann)::", owner(name)) and letter not in "Vu"]


@both
def test_variables_of_torch_stay_shared(library):
    """A strong definition of our own would be a second copy, and torch's would not be seen any more."""
    assert not [name for letter, name in exported(library)
                if re.match(r"(c10|at|torch|caffe2)::", owner(name)) and letter not in "WVu"]


@pytest.mark.skipif(not PROFILER.exists(), reason="built without CUDA")
def test_the_recorder_shares_nothing_with_the_programs_that_it_is_loaded_into():
    assert {name for _, name in exported(PROFILER)} == {"InitializeInjection", "InitializeInjectionNvtx2"}
