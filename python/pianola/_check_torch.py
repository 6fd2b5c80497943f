"""Whether the torch that is installed is the one that Pianola was built for.

Asked before the extension module is loaded: with another torch, that fails with the name of a missing symbol, or works
and computes nonsense. Loads nothing of Pianola, so that the command `pianola` can ask too, without loading torch.
"""

import importlib.util
import re
import sys
from typing import Any, Mapping, NamedTuple, Optional

FOLDER = "<Pianola's source folder>"


class Build(NamedTuple):
    """What matters of a torch, or of what Pianola was built for."""

    torch: str  # as in "2.11.0+cu130"
    cuda: str  # as in "13.0"; empty: none
    cxx11_abi: bool
    python: str  # as in "3.11"
    where: str = ""


def built_for(values: Mapping[str, Any]) -> Build:
    """From what CMake wrote into _build.py."""
    return Build(values["TORCH"], values["CUDA"], values["CXX11_ABI"], values["PYTHON"])


def describe(what: str, where: str, fix: str) -> str:
    """The three lines that every error of Pianola has."""
    return f"{what}\n  where: {where}\n  fix:   {fix}"


def minor(version: str) -> str:
    """'2.11' of '2.11.0+cu130'."""
    found = re.match(r"\d+\.\d+", version)
    return found[0] if found else version


def major(version: str) -> str:
    return version.partition(".")[0]


def named(torch: str, cuda: str) -> str:
    return f"torch {torch.partition('+')[0]} with CUDA {cuda}" if cuda else f"torch {torch.partition('+')[0]} without CUDA"


def build_again() -> str:
    return f"build Pianola again: pip install --no-build-isolation --force-reinstall --no-deps {FOLDER}"


def missing_torch(built: Build) -> str:
    return describe(f"pianola needs torch {minor(built.torch)}, but there is no torch", sys.executable,
                    f"pip install 'torch=={minor(built.torch)}.*'")


def mismatch(built: Build, found: Build) -> Optional[str]:
    """What is wrong with `found` for a Pianola that was made for `built`; None if nothing is."""
    if built.python != found.python:
        return describe(f"pianola was built for Python {built.python}, but this is Python {found.python}", sys.executable,
                        f"use Python {built.python}, or {build_again()}")
    if minor(built.torch) != minor(found.torch):
        return describe(
            f"pianola was built for {named(minor(built.torch), built.cuda)}, but {named(found.torch, found.cuda)} is "
            "installed", found.where, f"pip install 'torch=={minor(built.torch)}.*', or {build_again()}")
    # A Pianola without the CUDA backend uses the half of torch that every torch has.
    if built.cuda and major(built.cuda) != major(found.cuda):
        return describe(
            f"pianola was built for CUDA {built.cuda}, but {named(found.torch, found.cuda)} is installed", found.where,
            f"install a torch {minor(built.torch)} with CUDA {major(built.cuda)}, or {build_again()}")
    if built.cxx11_abi != found.cxx11_abi:
        return describe(
            f"pianola was built for the C++ ABI _GLIBCXX_USE_CXX11_ABI={int(built.cxx11_abi)}, but torch {found.torch} "
            f"has {int(found.cxx11_abi)}", found.where, build_again())
    return None


def installed() -> Build:
    """The torch that can be imported here."""
    import torch

    return Build(str(torch.__version__), torch.version.cuda or "", bool(torch._C._GLIBCXX_USE_CXX11_ABI),
                 f"{sys.version_info.major}.{sys.version_info.minor}", torch.__path__[0])


def check(built: Optional[Build] = None) -> None:
    """Raises ImportError where Pianola cannot work with what is installed."""
    if built is None:
        from pianola import _build

        built = built_for(vars(_build))
    if importlib.util.find_spec("torch") is None:
        raise ImportError(missing_torch(built))
    try:
        found = installed()
    except (ImportError, OSError) as error:
        spec = importlib.util.find_spec("torch")
        raise ImportError(describe(f"pianola needs torch, and torch cannot be imported: {error}",
                                   (spec and spec.origin) or sys.executable,
                                   f"pip install --force-reinstall 'torch=={minor(built.torch)}.*'")) from error
    wrong = mismatch(built, found)
    if wrong:
        raise ImportError(wrong)
