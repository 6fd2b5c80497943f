"""`python -m pianola ...`: the command `pianola ...`."""

from _pianola_program import main

main()
