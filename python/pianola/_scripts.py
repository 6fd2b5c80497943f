"""Functions that the command line names: of a file, "script.py:function", or of a module, "package.module:function"."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Optional

from ._errors import refuse


def load(target: str) -> tuple[ModuleType, Any]:
    """The module (the `__main__` part of a script does not run), and the function.

    Raises:
        UsageError: there is no such file, module or function. What the script raises comes out unchanged.
    """
    file, _, name = target.partition(":")
    if not name:
        refuse(f"'{target}' names no function", "write script.py:function")
    module = _run(file) if file.endswith(".py") or "/" in file else _import(file)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            own = [one for one, value in vars(module).items() if callable(value) and _is_of(module, value)]
            refuse(f"'{file}' has no '{name}'", f"it has {', '.join(own)}" if own else "")
        found = getattr(found, part)
    return module, found


def _is_of(module: ModuleType, value: Any) -> bool:
    return getattr(value, "__module__", "") == module.__name__


def _import(name: str) -> ModuleType:
    """As `python -m name` finds it: in the current folder too."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # one that the module imports
        refuse(f"there is no module '{error.name}'", "name a file, script.py:function, or set PYTHONPATH to its folder")


def _run(file: str) -> ModuleType:
    """As `python script.py` finds what lies beside it."""
    path = Path(file).resolve()
    if not path.is_file():
        refuse(f"there is no file '{file}'")
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses and pickle look there
    spec.loader.exec_module(module)
    return module


def check_writable(*files: Optional[str]) -> None:
    """Before the work, so that it is not done in vain. None and "-", the standard output, are no files.

    Raises:
        UsageError: one of them cannot be written.
    """
    for file in files:
        if file is None or file == "-":
            continue
        path = Path(file)
        is_new = not path.exists()
        try:
            path.open("a").close()
        except OSError as error:
            refuse(f"cannot write '{file}': {error.strerror}", "name a file in a folder that is there")
        if is_new:
            path.unlink()


def ended_itself(end: SystemExit) -> str:
    """A script that calls sys.exit() would choose the exit code, 3 for hazards that nobody looked for."""
    return f"the script ends itself, by sys.exit({end.code!r}): put that under `if __name__ == \"__main__\"`"


def with_arguments(made: Any) -> tuple[Any, dict[str, Any]]:
    """What a function `make_...` returns: a step, or a step and arguments by name."""
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], dict):
        return made
    return made, {}
