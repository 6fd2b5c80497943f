"""Loads the C++ library, after a look at whether it fits the torch that is installed."""

import os

from ._check_torch import check

check()

import torch  # noqa: E402  its libraries must be loaded first

from . import _C  # noqa: E402
from ._torch_abi import let_graphs_retain_pools  # noqa: E402
from ._wrong_arguments import sentence  # noqa: E402


def _folder(file: str) -> str:
    return os.path.join(os.path.dirname(os.path.abspath(file)), "")


_C.explain_wrong_arguments(sentence)
let_graphs_retain_pools()

# Their frames are not the user's when an error names a line.
_C.hide_python_files(_folder(str(torch.__file__)))
_C.hide_python_files(_folder(__file__))

__all__ = ["_C"]
