"""`python -m pianola ...`: the command `pianola ...`."""

import importlib
import sys

from _pianola_program import find_program, is_check_of_internals, is_for_python, is_for_ranks, start

if is_for_python(sys.argv[1:]):
    importlib.import_module("pianola._commands").main(sys.argv[1:])
elif is_for_ranks(sys.argv[1:]):
    importlib.import_module("pianola._demo_ranks").main(sys.argv[2:])
elif is_check_of_internals(sys.argv[1:]):
    sys.exit(importlib.import_module("pianola._internals").main(*find_program(), sys.argv[1:]))
else:
    start()
