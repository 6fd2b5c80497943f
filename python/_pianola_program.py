"""The command `pianola`: starts the program that lies in the package.

Beside the package and not in it, because Python imports a package before what is in it, and that would load torch: two
seconds for `pianola --help`.
"""

import importlib.util
import os
import re
import runpy
import sys
from pathlib import Path


def find(module, path):
    """The file at `path` in a package, which is not imported."""
    spec = importlib.util.find_spec(module)
    folders = (spec and spec.submodule_search_locations) or ()
    return next((Path(folder, path) for folder in folders if Path(folder, path).exists()), None)


def fail(sentence):
    raise SystemExit(f"pianola: {sentence}")


def cmake_dir():
    config = find("pianola", "lib/cmake/pianola")
    if config is None:
        fail("there are no CMake files here: this Pianola is a build tree, not an installation")
    return config


def check_torch():
    """As `import pianola` does, without loading torch. Returns torch's folder."""
    checks = runpy.run_path(str(find("pianola", "_check_torch.py")))
    built = checks["built_for"](runpy.run_path(str(find("pianola", "_build.py"))))
    version = find("torch", "version.py")
    if version is None:
        fail(checks["missing_torch"](built))
    torch = runpy.run_path(str(version))
    wrong = checks["mismatch"](built, built._replace(
        torch=torch["__version__"], cuda=torch["cuda"] or "", where=str(version.parent)))
    if wrong:
        fail(wrong)
    return version.parent


def environment(program, torch):
    """Where torch does not lie beside our package, the program does not know where it is."""
    if program.parents[2] == torch.parent:
        return os.environ
    folders = [torch / "lib", *torch.parent.glob("nvidia/*/lib")]
    before = [os.environ["LD_LIBRARY_PATH"]] if os.environ.get("LD_LIBRARY_PATH") else []
    return {**os.environ, "LD_LIBRARY_PATH": ":".join([*before, *map(str, folders)])}


# As in apps/python_command.cpp.
COMMANDS = ("audit", "verify", "memory", "profile", "decide")
OF_MODULE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def is_for_python(arguments):
    """Whether the command line is about a function, `file.py:function` or `module:function`. Help is the program's."""
    if not arguments or arguments[0] not in COMMANDS:
        return False
    words = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if {"-h", "--help"} & set(words):
        return False
    for before, word in zip(words, words[1:]):
        if names_function(words[0], before, word):
            return True
        if words[0] == "profile" and not before.startswith("--") and not word.startswith("-"):
            return False  # another program, whose words follow
    return False


def names_function(command, before, word):
    """A file may have the form of module:function, and the value of an option."""
    file, colon, _ = word.partition(":")
    if file.endswith(".py"):
        return bool(colon) or command in ("audit", "verify", "memory")
    is_value = before.startswith("--") and not before.startswith("--no-")
    return OF_MODULE.fullmatch(word) is not None and not is_value and not Path(word).exists()


def is_for_ranks(arguments):
    """Whether torchrun, or what sets the same variables, started several processes of `pianola demo`. Help is the program's."""
    several = os.environ.get("WORLD_SIZE", "1") != "1" and "RANK" in os.environ
    return several and arguments[:1] == ["demo"] and not {"-h", "--help"} & set(arguments)


def is_check_of_internals(arguments):
    """Of what Pianola builds on inside torch: the package has its own part in it. Help is the program's."""
    return arguments[:1] == ["info"] and any(one.partition("=")[0] == "--check" for one in arguments) and not {"-h", "--help"} & set(arguments)


def main():
    if sys.argv[1:] == ["--cmake-dir"]:
        print(cmake_dir())
    elif any(is_its(sys.argv[1:]) for is_its in (is_for_python, is_for_ranks, is_check_of_internals)):
        runpy.run_module("pianola", run_name="__main__", alter_sys=True)
    else:
        start()


def find_program():
    """Its path, and the environment that it needs."""
    program = find("pianola", "bin/pianola")
    if program is None:
        fail("the package has no program: it was built with -DPIANOLA_PROGRAM=OFF")
    return program, environment(program, check_torch())


def start():
    """Becomes the program."""
    program, variables = find_program()
    os.execve(program, ["pianola", *sys.argv[1:]], variables)
