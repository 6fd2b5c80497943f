"""What the integrations share: packages that may be missing, and the one line that says why something stays eager."""

import importlib
import logging
from typing import Any, Callable

from .._errors import refuse

log = logging.getLogger("pianola")


def needed(*names: str, install: str) -> Any:
    """The first of these modules that is installed.

    Args:
        install: what to give to pip.
    """
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name != name and not name.startswith(f"{error.name}."):
                raise  # it is there, and lacks something itself
    refuse(f"the integration needs {' or '.join(names)}, which is not installed", f"pip install {install}")


def says_once(who: str) -> Callable[[str], None]:
    """An `on_fallback` that logs the first reason as a warning, and the others, of further shapes mostly, for those who debug."""
    said: list[str] = []

    def say(reason: str) -> None:
        log.log(logging.DEBUG if said else logging.WARNING, "%s runs eagerly: %s", who, reason)
        said.append(reason)

    return say
