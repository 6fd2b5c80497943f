"""scikit-build-core, and one sentence where it could only fail in a way that is hard to read.

pip shows the output of a backend that exits; a traceback would bury the sentence, so there is none.
"""

import importlib.util
import sys
from pathlib import Path

import pianola_metadata

ROOT = Path(__file__).resolve().parents[2]
SCIKIT_BUILD = "scikit-build-core>=1.1"  # the first with [[tool.dynamic-metadata]] that was tried
INSTALL = "pip install --no-build-isolation ."


def refuse(sentence):
    raise SystemExit(f"pianola: {sentence}")


def is_there(module):
    return importlib.util.find_spec(module) is not None


def require_no_isolation():
    """Asked for requirements, we are as a rule in an environment that pip made for the build."""
    if not is_there("torch"):
        refuse("Pianola is built for the torch that is installed, and pip's isolated build environment has none: use "
               f"`{INSTALL}` where torch is installed.")


def require_torch():
    if not is_there("torch"):
        refuse(f"Pianola is built for the torch that is installed, and {sys.prefix} has none: use `pip install "
               f"'{pianola_metadata.UNBUILT}'`, then `{INSTALL}` again.")


def require_scikit_build():
    if not is_there("scikit_build_core"):
        refuse(f"scikit-build-core is not installed in {sys.prefix}: use `pip install '{SCIKIT_BUILD}'`, then "
               f"`{INSTALL}` again.")


def load_setup():
    """tools/setup.py, which knows the tools and headers and the packages that they are in."""
    spec = importlib.util.spec_from_file_location("pianola_setup", ROOT / "tools" / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def require_tools():
    setup = load_setup()
    missing = setup.missing_for_package()
    if missing:
        packages = " ".join(sorted(set(missing.values())))
        refuse(f"{setup.listed(missing)} missing: use `apt-get install {packages}` as root, or what your system has for "
               f"that, then `{INSTALL}` again.")
    try:
        setup.check_versions()
    except setup.SetupError as error:
        refuse(str(error))


def require_all():
    require_torch()
    require_scikit_build()
    require_tools()


def with_interpreter(settings):
    """The torch to build for is that of the Python that installs, wherever else there is one."""
    return {"cmake.define.PIANOLA_PYTHON": sys.executable, **(settings or {})}


def get_requires_for_build_wheel(config_settings=None):
    require_no_isolation()
    require_tools()
    return [SCIKIT_BUILD]


get_requires_for_build_editable = get_requires_for_build_wheel


def get_requires_for_build_sdist(config_settings=None):
    return [SCIKIT_BUILD]


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    require_all()
    from scikit_build_core import build
    return build.prepare_metadata_for_build_wheel(metadata_directory, with_interpreter(config_settings))


def prepare_metadata_for_build_editable(metadata_directory, config_settings=None):
    require_all()
    from scikit_build_core import build
    return build.prepare_metadata_for_build_editable(metadata_directory, with_interpreter(config_settings))


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    require_all()
    from scikit_build_core import build
    return build.build_wheel(wheel_directory, with_interpreter(config_settings), metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    require_all()
    from scikit_build_core import build
    return build.build_editable(wheel_directory, with_interpreter(config_settings), metadata_directory)


def build_sdist(sdist_directory, config_settings=None):
    require_scikit_build()
    from scikit_build_core import build
    return build.build_sdist(sdist_directory, config_settings)
