"""What of the package's metadata is not written in pyproject.toml."""

import re
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UNBUILT = "torch>=2.11"  # of a source distribution made without torch


def version():
    found = re.search(r"project\(pianola VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())
    return found[1]


def torch_requirement():
    """libtorch promises no binary compatibility between minor versions."""
    try:
        major, minor = metadata.version("torch").split(".")[:2]
    except metadata.PackageNotFoundError:
        return UNBUILT
    return f"torch=={major}.{minor}.*"


def dynamic_metadata(settings, project):
    return {"version": version(), "dependencies": [torch_requirement()]}


def dynamic_wheel(settings):
    return {"dependencies": True}
