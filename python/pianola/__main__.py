"""`python -m pianola ...`: the command `pianola ...`, what it does with functions of Python scripts, and the
benchmark of scopes, whose rows are Python's."""

import importlib
import importlib.util
import sys

from _pianola_program import start

# Of a script these do what the program does of a TorchScript file.
_FOR_SCRIPTS = {"audit": "pianola.auditing.command", "verify": "pianola.verify_command"}


def _is_for_scripts(arguments: list[str]) -> bool:
    """With a script as an argument, or with options alone: then its own help tells more."""
    from .scripts import is_script

    if not arguments or arguments[0] not in _FOR_SCRIPTS or importlib.util.find_spec(_FOR_SCRIPTS[arguments[0]]) is None:
        return False
    return any(map(is_script, arguments[1:])) or all(one.startswith("-") for one in arguments[1:])


if sys.argv[1:3] == ["bench", "scopes"]:
    importlib.import_module("pianola.benchmarking.command").main(sys.argv[3:])
elif _is_for_scripts(sys.argv[1:]):
    importlib.import_module(_FOR_SCRIPTS[sys.argv[1]]).main(sys.argv[2:])
else:
    start()
