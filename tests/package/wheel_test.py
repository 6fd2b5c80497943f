"""The wheel holds what it should, and works from a folder that is far from the source tree and has no torch beside it."""

import importlib.util
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(module) is None for module in ("scikit_build_core", "pip")),
    reason=f"{sys.executable} lacks scikit-build-core or pip")

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ["PIANOLA_BUILD_DIR"])
CONSUMER = ROOT / "tests" / "package" / "consumer"
CACHE = dict(re.findall(r"^(\w+):\w+=(.*)$", (BUILD / "CMakeCache.txt").read_text(), re.MULTILINE))
WITH_CUDA = (BUILD / "libpianola_profiler.so").exists()


def run(*command, **options):
    ran = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    assert ran.returncode == 0, f"{command}\n{ran.stdout[-4000:]}\n{ran.stderr[-4000:]}"
    return ran.stdout


def pip(*arguments):
    return run(sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments)


@pytest.fixture(scope="session")
def wheel():
    """Compiled as the build tree was, so that a compiler cache has it; in a folder that stays, so that ninja has it."""
    kind = CACHE["CMAKE_BUILD_TYPE"]
    flags = f"CMAKE_CXX_FLAGS_{kind.upper()}"
    names = (flags, "CMAKE_CXX_COMPILER", "PIANOLA_CUDA", "PIANOLA_WERROR", "PIANOLA_UNITY", "PIANOLA_PRECOMPILE")
    settings = {"PIANOLA_PRECOMPILED_IN": BUILD, **{name: CACHE[name] for name in names}}
    folder = BUILD / "package" / "wheel"
    for old in folder.glob("*.whl"):
        old.unlink()
    pip("wheel", "--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", folder,
        f"--config-settings=build-dir={folder / 'build'}", f"--config-settings=cmake.build-type={kind}",
        *(f"--config-settings=cmake.define.{name}={value}" for name, value in settings.items()), ROOT)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="session")
def site(wheel, tmp_path_factory):
    """A folder with nothing but the wheel."""
    folder = tmp_path_factory.mktemp("site")
    pip("install", "--no-deps", "--no-index", "--target", folder, wheel)
    return folder


def in_site(site, *command):
    environment = {**os.environ, "PYTHONPATH": str(site)}
    return run(*command, env=environment, cwd=site.parent)


def test_it_is_made_for_this_python_and_platform(wheel):
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert re.fullmatch(rf"pianola-[\d.]+-{tag}-{tag}-linux_\w+\.whl", wheel.name)


def test_it_holds_the_package_and_nothing_of_torch(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {path.relative_to(ROOT / "python").as_posix()
               for pattern in ("*.py", "*.pyi", "py.typed") for path in (ROOT / "python" / "pianola").rglob(pattern)}
    headers = {f"pianola/include/{path.relative_to(ROOT).as_posix()}"
               for path in (ROOT / "pianola").rglob("*.hpp")} & names
    extension, = (name for name in names if re.fullmatch(r"pianola/_C\.cpython-\w+-[\w-]+\.so", name))
    cmake = {f"pianola/lib/cmake/pianola/{name}" for name in (
        "FindLibtorch.cmake", "pianolaConfig.cmake", "pianolaConfigVersion.cmake", "pianolaTargets.cmake",
        f"pianolaTargets-{CACHE['CMAKE_BUILD_TYPE'].lower()}.cmake")}
    expected = {extension, *sources, *headers, *cmake,
                "_pianola_program.py", "pianola/_build.py", "pianola/bin/pianola", "pianola/lib/libpianola.so",
                "pianola/lib/libpianola_profile.so"}
    if WITH_CUDA:
        expected.add("pianola/lib/libpianola_profiler.so")
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert {"pianola/include/pianola/pianola.hpp", "pianola/include/pianola/profile.hpp",
            "pianola/include/pianola/graph/graph.hpp"} <= headers


def test_its_metadata_names_the_torch_that_it_was_built_for(wheel):
    import torch

    archive = zipfile.ZipFile(wheel)
    texts = {Path(name).name: archive.read(name).decode() for name in archive.namelist() if ".dist-info/" in name}
    version = re.search(r"project\(pianola VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
    major, minor = torch.__version__.split(".")[:2]
    for line in (f"Version: {version}", f"Requires-Dist: torch=={major}.{minor}.*", "License-File: LICENSE",
                 "Requires-Python: >=3.10"):
        assert line in texts["METADATA"].splitlines()
    assert "pianola=_pianola_program:main" in texts["entry_points.txt"].replace(" ", "")
    assert "Root-Is-Purelib: false" in texts["WHEEL"]


def test_it_looks_for_libraries_beside_itself_only(site):
    import torch

    packages = Path(torch.__file__).parents[1]
    extension, = (site / "pianola").glob("_C.*.so")
    for file, package in ((extension, "$ORIGIN"), (site / "pianola/lib/libpianola.so", "$ORIGIN/.."),
                          (site / "pianola/lib/libpianola_profile.so", "$ORIGIN/.."), (site / "pianola/bin/pianola", "$ORIGIN/..")):
        (paths,) = re.findall(r"\(RUNPATH\).*\[(.*)\]", run("readelf", "-d", file))
        assert {f"{package}/lib", f"{package}/../torch/lib"} <= set(paths.split(":"))
        assert not [path for path in paths.split(":") if path.startswith((str(ROOT), str(packages), str(BUILD)))]


def test_it_is_imported_from_elsewhere(site):
    code = "import pianola; print(pianola.__version__); print(pianola.__file__)"
    version, file = in_site(site, sys.executable, "-c", code).split()
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert Path(file).is_relative_to(site)


@pytest.mark.parametrize("command", [["bin/pianola"], [sys.executable, "-m", "pianola"]], ids=["command", "module"])
def test_its_program_runs(site, command):
    command = [site / command[0], *command[1:]] if len(command) == 1 else command
    assert "tape" in in_site(site, *command, "info")


@pytest.mark.parametrize("command", [["bin/pianola"], [sys.executable, "-m", "pianola"]], ids=["command", "module"])
def test_its_program_audits_functions_of_python_files(site, command, tmp_path):
    (tmp_path / "train.py").write_text("import torch\n\n\ndef step():\n    return torch.ones(3) * 2\n")
    command = [site / command[0], *command[1:]] if len(command) == 1 else command
    assert "no hazards" in in_site(site, *command, "audit", f"{tmp_path / 'train.py'}:step")


@pytest.mark.parametrize("command", [["bin/pianola"], [sys.executable, "-m", "pianola"]], ids=["command", "module"])
def test_it_reads_exports_of_nsight_systems(site, command):
    export = ROOT / "tests/fuzz/corpus/nsight_export/steps.sqlite"
    command = [site / command[0], *command[1:]] if len(command) == 1 else command
    assert f"Nsight Systems export '{export}'" in in_site(site, *command, "decide", export)


@pytest.mark.parametrize("name", ["audit", "verify", "profile", "decide"])
def test_its_help_is_one(site, name):
    told = in_site(site, site / "bin/pianola", name, "--help")
    assert told == in_site(site, sys.executable, "-m", "pianola", name, "--help") and "FILE.py:FUNCTION" in told


@pytest.mark.skipif(not WITH_CUDA, reason="built without CUDA")
def test_its_program_finds_its_profiler(site):
    ran = subprocess.run([site / "bin/pianola", "profile", "--", "true"], capture_output=True, text=True,
                         env={**os.environ, "PYTHONPATH": str(site)}, cwd=site.parent)
    assert ran.returncode == 1
    assert "'true' ended with exit code 0 and never used CUDA" in ran.stderr


def test_another_torch_is_refused_by_the_program_too(site, tmp_path):
    other = tmp_path / "torch"
    other.mkdir()
    (other / "__init__.py").touch()
    (other / "version.py").write_text("__version__ = '2.3.4'\ncuda = None\n")
    ran = subprocess.run([site / "bin/pianola", "info"], capture_output=True, text=True,
                         env={**os.environ, "PYTHONPATH": f"{tmp_path}:{site}"})
    assert ran.returncode == 1
    assert re.match(r"pianola: pianola was built for torch .*, but torch 2\.3\.4 without CUDA is installed\n", ran.stderr)


def test_cmake_finds_it(site, tmp_path):
    folder = in_site(site, site / "bin/pianola", "--cmake-dir").strip()
    run("cmake", "-S", CONSUMER, "-B", tmp_path, "-G", "Ninja", f"-Dpianola_DIR={folder}",
        f"-DPIANOLA_PYTHON={sys.executable}", f"-DCMAKE_CXX_COMPILER={CACHE['CMAKE_CXX_COMPILER']}")
    run("cmake", "--build", tmp_path)
    assert run(tmp_path / "consumer") == "ok\n"
