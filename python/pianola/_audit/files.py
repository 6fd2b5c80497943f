"""Whose files are whose: which frames are the user's, and through what a call went on its way from one."""

import functools
import os
import site
import sysconfig
import tempfile
import warnings
from types import CodeType, FrameType, TracebackType
from typing import Any, Iterator, NamedTuple, Optional

import torch

from .._load import _C

HIDDEN = _C.FILE_HIDDEN
BOUNDARY = _C.FILE_BOUNDARY
TORCH = 4
COMPILER = 8
CHECKPOINT = 16
WARNINGS = 32
PACKAGE = 64
BACKWARD = 128

# Packages that do a program's chores. What they do is the doing of whoever calls them.
_CHORES = ("numpy", "scipy", "pandas", "tqdm", "rich", "loguru", "tensorboard", "wandb", "matplotlib", "PIL", "pytest",
           "_pytest", "pluggy", "coverage", "debugpy", "IPython", "ipykernel", "typing_extensions")  # fmt: skip


def _folder(path: str) -> str:
    return os.path.join(os.path.abspath(path), "")


_TORCH = _folder(os.path.dirname(str(torch.__file__)))
_COMPILERS = tuple(
    _TORCH + os.path.join(*parts)
    for parts in (("_dynamo", "convert_frame.py"), ("_inductor", ""), ("_functorch", "_aot_autograd", ""))
)
_KINDS = {
    _TORCH + os.path.join("utils", "checkpoint.py"): CHECKPOINT,
    _TORCH + os.path.join("autograd", "__init__.py"): BACKWARD,
    _TORCH + os.path.join("autograd", "graph.py"): BACKWARD,
}
_PIANOLA = _folder(os.path.dirname(os.path.dirname(__file__)))
# Files whose functions call the step.
_RUNS = (os.path.join(os.path.dirname(os.path.abspath(__file__)), "runs.py"), os.path.join(_PIANOLA, "_host_watch.py"))
_COMPILED = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or os.path.join(tempfile.gettempdir(), "torchinductor_")
_STANDARD = tuple({_folder(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")})


def _package_folders() -> tuple[str, ...]:
    paths = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages(), site.getusersitepackages()]
    return tuple({_folder(path) for path in [*paths, os.path.dirname(os.path.dirname(_TORCH))]})


_PACKAGES = _package_folders()


_adopted: set[str] = set()


def adopt(step: Any) -> None:
    """The step is the user's, even where it was made from a string."""
    code = getattr(getattr(step, "__func__", step), "__code__", None)
    if code is not None and code.co_filename.startswith("<") and code.co_filename not in _adopted:
        _adopted.add(code.co_filename)
        kind_of_file.cache_clear()


@functools.lru_cache(maxsize=None)
def kind_of_file(file: str) -> int:
    """Bits: HIDDEN, BOUNDARY, and where it belongs. 0 for the user's own, PACKAGE for those of packages that are installed."""
    if file.startswith("<"):  # mostly made at run time, as dataclasses and torch.fx do
        return 0 if file in _adopted or file.startswith(("<stdin>", "<ipython")) else HIDDEN
    if file.startswith(_TORCH):
        return HIDDEN | TORCH | (COMPILER if file.startswith(_COMPILERS) else 0) | _KINDS.get(file, 0)
    if file.startswith(_COMPILED):
        return HIDDEN | TORCH | COMPILER
    if file.startswith(_PIANOLA):
        return HIDDEN | (BOUNDARY if file in _RUNS else 0)
    package = next((folder for folder in _PACKAGES if file.startswith(folder)), None)
    if package is not None:
        return PACKAGE | (HIDDEN if file[len(package) :].split(os.sep)[0].removesuffix(".py") in _CHORES else 0)
    if file == warnings.__file__:
        return HIDDEN | WARNINGS
    return HIDDEN if file.startswith(_STANDARD) else 0


def is_users(code: CodeType) -> bool:
    return not kind_of_file(code.co_filename) & HIDDEN


@functools.lru_cache(maxsize=None)
def hide_from_engine() -> None:
    """The engine names lines too, and hides torch and Pianola only."""
    _C.hide_python_files(_COMPILED)
    for folder in _STANDARD:
        for entry in os.scandir(folder) if os.path.isdir(folder) else ():
            if entry.name not in ("site-packages", "dist-packages"):
                _C.hide_python_files(entry.path)
    for folder in _PACKAGES:
        for name in _CHORES:
            if os.path.exists(os.path.join(folder, name)):
                _C.hide_python_files(_folder(os.path.join(folder, name)))


class Place(NamedTuple):
    """A line of the user's; empty where it is not known."""

    function: str = ""
    file: str = ""
    line: int = 0

    @property
    def known(self) -> bool:
        return bool(self.file)


def _frames(frame: Optional[FrameType]) -> Iterator[FrameType]:
    while frame is not None and not kind_of_file(frame.f_code.co_filename) & BOUNDARY:
        yield frame
        frame = frame.f_back


def place_of_frame(frame: Optional[FrameType]) -> Place:
    """The user's innermost line at or above this frame."""
    for one in _frames(frame):
        if is_users(one.f_code):
            return Place(one.f_code.co_name, one.f_code.co_filename, one.f_lineno)
    return Place()


def place_of_error(traceback: Optional[TracebackType]) -> Place:
    """The user's innermost line of an exception that came out of the step."""
    found = Place()
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if kind_of_file(code.co_filename) & BOUNDARY:
            found = Place()
        elif is_users(code):
            found = Place(code.co_name, code.co_filename, traceback.tb_lineno)
        traceback = traceback.tb_next
    return found


def place_of_code(code: CodeType) -> Place:
    """Where a function is defined."""
    return Place(code.co_name, code.co_filename, code.co_firstlineno)
