"""The errors of the library. Each text says what happened, where, and what to do about it; `what`, `where`, `fix`
and `rule` hold the parts."""

from typing import NoReturn

from ._load import _C

Error = _C.Error
UsageError = _C.UsageError
CaptureError = _C.CaptureError
OutOfMemoryError = _C.OutOfMemoryError
ReplayError = _C.ReplayError
GuardError = _C.GuardError
ScheduleError = _C.ScheduleError
ConfigError = _C.ConfigError
NonFiniteError = _C.NonFiniteError
UnsupportedError = _C.UnsupportedError
CommunicationError = _C.CommunicationError
DeviceError = _C.DeviceError


def text_of(what: str, fix: str = "", where: str = "", rule: str = "") -> str:
    """The text of such an error."""
    try:
        refuse(what, fix, where, rule=rule)
    except UsageError as error:
        return str(error)


def refuse(what: str, fix: str = "", where: str = "", kind: str = "UsageError", rule: str = "") -> NoReturn:
    """Raises an error of ours, in the form that all of them have."""
    _C.raise_error(kind, what, where, fix, rule)
