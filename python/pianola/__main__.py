"""`python -m pianola ...`: the command `pianola ...`, and what it does with functions of Python scripts."""

import importlib
import importlib.util
import sys

from _pianola_program import main

# Of a script these do what the program does of a TorchScript file.
_FOR_SCRIPTS = {"audit": "pianola.auditing.command", "verify": "pianola.verify_command"}


def _is_for_scripts(arguments: list[str]) -> bool:
    """With a script as an argument, or with options alone: then its own help tells more."""
    from .scripts import is_script

    if not arguments or arguments[0] not in _FOR_SCRIPTS or importlib.util.find_spec(_FOR_SCRIPTS[arguments[0]]) is None:
        return False
    return any(map(is_script, arguments[1:])) or all(one.startswith("-") for one in arguments[1:])


if _is_for_scripts(sys.argv[1:]):
    importlib.import_module(_FOR_SCRIPTS[sys.argv[1]]).main(sys.argv[2:])
else:
    main()
