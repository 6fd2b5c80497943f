"""`python -m pianola ...`: the command `pianola ...`, and what it does with functions of Python scripts."""

import importlib
import sys

from _pianola_program import is_for_python, start

# Of a script these do what the program does of a TorchScript file.
_FOR_SCRIPTS = {"audit": "pianola.auditing.command", "verify": "pianola.verify_command"}


def _is_for_scripts(arguments: list[str]) -> bool:
    """With a script as an argument, or with options alone: then its own help tells more."""
    options_alone = arguments[:1] in (["audit"], ["verify"]) and all(one.startswith("-") for one in arguments[1:])
    return options_alone or is_for_python(arguments)


if _is_for_scripts(sys.argv[1:]):
    importlib.import_module(_FOR_SCRIPTS[sys.argv[1]]).main(sys.argv[2:])
else:
    start()
