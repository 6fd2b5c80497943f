"""Brings a machine to the point where CMake can configure Pianola. `make` calls it; a second run changes nothing.

    setup.py                     install what is missing: packages by apt, torch and the like into .venv
    setup.py --given             install nothing: check that the tools are there and that this interpreter has torch
    setup.py --given --tests     the same, and what `make test` needs besides
    setup.py --zoo               install also what bench/zoo and python/tests/integrations want: models and trainers
"""

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOG = ROOT / "build" / "setup.log"
REQUIREMENTS = ROOT / "requirements.txt"
ZOO_REQUIREMENTS = ROOT / "requirements-zoo.txt"
VENV_GIB = 8  # torch with its CUDA libraries takes 5, their downloads while they are unpacked the rest

# Command -> (Debian package, oldest version that will do).
COMMANDS = {
    "g++": ("g++", (12,)),
    "cmake": ("cmake", (3, 25)),
    "ninja": ("ninja-build", ()),
    "ccache": ("ccache", ()),
    "nm": ("binutils", ()),
}
# A build works without, only slower when it is repeated, or unable to read compressed profiles:
# installed by us, not asked of a given machine.
COMFORT = {"ccache", "zlib.h"}
# Header -> Debian package.
PACKAGE_HEADERS = {  # what `pip install` builds needs no more than these
    "CLI/CLI.hpp": "libcli11-dev",
    "nlohmann/json.hpp": "nlohmann-json3-dev",
    "fmt/format.h": "libfmt-dev",
}
HEADERS = {
    "gtest/gtest.h": "libgtest-dev",
    "gmock/gmock.h": "libgmock-dev",
    "zlib.h": "zlib1g-dev",
    **PACKAGE_HEADERS,
}
FORMATTER = "clang-format-14"  # versions differ in what they find well formatted
# Python module -> Debian package, for making .venv.
VENV_MODULES = {"venv": "python3-venv", "ensurepip": "python3-venv"}


class SetupError(Exception):
    """What is wrong and what to do about it, in one sentence."""


def version_of(command):
    text = subprocess.run([command, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"\d+(\.\d+)+", text.splitlines()[0] if text else "")
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def check_versions():
    for command, (_, oldest) in COMMANDS.items():
        version = version_of(command) if oldest else ()
        if version < oldest:
            have, need = (".".join(map(str, v)) for v in (version, oldest))
            raise SetupError(f"{command} {have} is too old: Pianola needs {need} or newer, as in Debian 12 and Ubuntu 24.04.")


def missing_headers(wanted=HEADERS):
    """Asks the compiler, which knows all the places where headers may be."""
    if not shutil.which("g++"):
        return list(wanted)
    probe = "".join(f"#if !__has_include(<{header}>)\nmissing {header}\n#endif\n" for header in wanted)
    prefixes = [prefix for prefix in re.split("[:;]", os.environ.get("CMAKE_PREFIX_PATH", "")) if prefix]
    command = ["g++", "-x", "c++", "-E", "-P", *(f"-I{prefix}/include" for prefix in prefixes), "-"]
    lines = subprocess.run(command, input=probe, capture_output=True, text=True).stdout.splitlines()
    return [line.removeprefix("missing ") for line in lines if line.startswith("missing ")]


def missing_python_header():
    """Of the interpreter that runs this: .venv is made from it, or it is the one given."""
    there = (Path(sysconfig.get_path("include")) / "Python.h").exists()
    return {} if there else {"Python.h": "python3-dev"}


def missing_tools(headers=HEADERS):
    """What the build lacks, as {name: package}."""
    missing = {name: package for name, (package, _) in COMMANDS.items() if not shutil.which(name)}
    missing.update({header: headers[header] for header in missing_headers(headers)})
    return {**missing, **missing_python_header()}


def missing_for_package():
    """What `pip install` of this project lacks, as {name: package}."""
    missing = missing_tools(PACKAGE_HEADERS)
    return {tool: package for tool, package in missing.items() if tool not in COMFORT and tool != "nm"}


def missing_test_tools():
    return {} if shutil.which(FORMATTER) else {FORMATTER: FORMATTER}


def missing_modules(modules):
    return {module: package for module, package in modules.items() if importlib.util.find_spec(module) is None}


def listed(names):
    *first, last = sorted(set(names))
    return f"{', '.join(first)} and {last} are" if first else f"{last} is"


def run_logged(command, **options):
    LOG.parent.mkdir(parents=True, exist_ok=True)
    with LOG.open("a") as log:
        print("$", *command, file=log, flush=True)
        return subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, **options).returncode == 0


def installer(missing):
    """The command that installs packages, with root's rights."""
    install = f"apt-get install {' '.join(sorted(set(missing.values())))}"
    if not shutil.which("apt-get"):
        raise SetupError(f"{listed(missing)} missing and there is no apt-get here: install what `{install}` would on "
                         "Debian, then run make again.")
    if os.geteuid() == 0:
        return ["apt-get"]
    if not shutil.which("sudo"):
        raise SetupError(f"{listed(missing)} missing and to install needs root: run `{install}` as root, then make again.")
    # Without a terminal nobody can type a password.
    return ["sudo", "apt-get"] if sys.stdin.isatty() else ["sudo", "-n", "apt-get"]


def install_packages(missing):
    if not missing:
        return
    apt = installer(missing)
    packages = sorted(set(missing.values()))
    print(f"Installing {', '.join(packages)} ...", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = run_logged([*apt, "update"], env=environment) and run_logged(
        [*apt, "install", "-y", "--no-install-recommends", *packages], env=environment)
    if not done:
        raise SetupError(f"apt-get could not install {', '.join(packages)} (see {LOG.relative_to(ROOT)}): check the network "
                         "and root's rights, or install them yourself, then run make again.")


def install_system():
    install_packages({**missing_tools(), **missing_test_tools(), **missing_modules(VENV_MODULES)})
    still = {**missing_tools(), **missing_test_tools()}
    if still:
        raise SetupError(f"{listed(still)} still missing after apt-get installed {', '.join(sorted(set(still.values())))}: "
                         "install by hand, then run make again.")


def installed_from(requirements):
    """The file that says what the last complete installation was made from."""
    return VENV / f"installed-{requirements.name}"


def is_installed(requirements):
    marker = installed_from(requirements)
    return (VENV / "bin" / "python").exists() and marker.exists() and marker.read_text() == requirements.read_text()


def check_disk():
    free = shutil.disk_usage(ROOT).free / 2**30
    if free < VENV_GIB:
        raise SetupError(f"{ROOT} has {free:.1f} GiB free but torch with its CUDA libraries needs {VENV_GIB}: free some "
                         "space, or use a Python that has torch already: make PYTHON=python3.")


def pip_failure(log):
    if "No space left on device" in log:
        return "the disk is full: free some space, then run make again"
    return ("check the network and run make again, or use a Python that has torch already: make PYTHON=python3 "
            f"(details in {LOG.relative_to(ROOT)})")


def make_venv():
    """What an interrupted run has left, or a Python that is gone, is no base to build on."""
    python = VENV / "bin" / "python"
    if python.exists() and run_logged([str(python), "-m", "pip", "--version"]):
        return
    check_disk()
    print("Making .venv ...", flush=True)
    if not run_logged([sys.executable, "-m", "venv", "--clear", str(VENV)]):
        raise SetupError(f"python3 -m venv could not make .venv (see {LOG.relative_to(ROOT)}): check that the project's "
                         "folder is writable, or use a Python that has torch already: make PYTHON=python3.")


def install_requirements(requirements, remark=""):
    if is_installed(requirements):
        return
    make_venv()
    wanted = [line for line in requirements.read_text().split("\n") if line and not line.startswith("#")]
    print(f"Installing {', '.join(wanted)} into .venv{remark} ...", flush=True)
    # Unpacked beside .venv, so that one file system has to have the room, and not a small /tmp.
    scratch = ROOT / "build" / "tmp"
    scratch.mkdir(parents=True, exist_ok=True)
    begin = LOG.stat().st_size
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "-r", str(requirements)]
    done = run_logged([*pip, "--no-cache-dir"], env={**os.environ, "TMPDIR": str(scratch)})
    shutil.rmtree(scratch, ignore_errors=True)
    if not done:
        with LOG.open(errors="replace") as log:
            log.seek(begin)
            raise SetupError(f"pip could not fill .venv: {pip_failure(log.read())}.")
    installed_from(requirements).write_text(requirements.read_text())


def check_given(tests):
    missing = {**missing_tools(), **(missing_test_tools() if tests else {})}
    missing = {tool: package for tool, package in missing.items() if tool not in COMFORT}
    if missing:
        packages = " ".join(sorted(set(missing.values())))
        raise SetupError(f"{listed(missing)} missing: install with `apt-get install {packages}`, or leave PYTHON out "
                         "and make does it.")
    for module in ("torch", "pytest") if tests else ("torch",):
        if importlib.util.find_spec(module) is None:
            raise SetupError(f"{sys.executable} has no {module}: install it there, name another interpreter, or leave "
                             "PYTHON out and make sets up its own.")


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--given", action="store_true")
    parser.add_argument("--tests", action="store_true")
    parser.add_argument("--zoo", action="store_true")
    options = parser.parse_args(arguments)
    try:
        if options.given:
            check_given(options.tests)
        else:
            install_system()
        check_versions()
        if not options.given:
            install_requirements(REQUIREMENTS, "; torch is 2.5 GB to download")
            if options.zoo:
                install_requirements(ZOO_REQUIREMENTS)
    except SetupError as error:
        print(f"make: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
