"""References to an object, counted where torch may have changed what a count says.

A compilation by torch.compile that fails leaves torch's evaluator of frames in the interpreter, and under it each running frame of
Python holds its arguments once more. So an object that was given to running functions counts more than it did before.
"""

import sys


def _in_a_frame(one: object) -> int:
    return sys.getrefcount(one)


_BEFORE = _in_a_frame(object())  # when Pianola was imported: counts that were noted then are of that state


def more_in_a_frame() -> int:
    """How many more references each running frame holds to an argument than when Pianola was imported."""
    return _in_a_frame(object()) - _BEFORE
