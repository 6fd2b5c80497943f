"""`python -m pianola ...`: the command `pianola ...`."""

import importlib
import sys

from _pianola_program import is_for_python, start

if is_for_python(sys.argv[1:]):
    importlib.import_module("pianola._commands").main(sys.argv[1:])
else:
    start()
