"""What Python and the engine found, as one report: what both saw is told once."""

from typing import Any

from .._load import _C
from .changes import Change, last_name
from .findings import Findings, Found
from .frameworks import Frameworks
from .host_state import HostState
from .locate import names_on

# Rules of the engine that are consequences of what Python saw on the same line.
_CONSEQUENCES = {
    "PG104": {"PG108", "PG110"},
    "PG108": {"PG108", "PG109", "PG110"},
    "PG109": {"PG108", "PG109", "PG110"},
    "PG602": {"PG602"},
    "PG603": {"PG603"},
    "PG605": {"PG605"},
}
# Rules of Python's that say less than these of the engine on the same line.
_BETTER_TOLD = {"PG103": {"PG103"}}
_OF_NUMBERS = {"PG301", "PG302", "PG303", "PG1001"}
_OF_PATHS = {"PG501", "PG502", "PG503", "PG504", "PG505"}
_OF_MOVES = {"PG401", "PG402", "PG802"}


def merged(report: "_C.AuditReport", findings: Findings, host: HostState, frameworks: Frameworks) -> "_C.AuditReport":
    """The engine's report, which has Python's findings already, without doubles and with what only both together show."""
    result = report.kept(_Doubles(report, findings).is_told_once)
    engine = [found for found in report.findings if not _is_pythons(found, findings)]
    for path, assigned in host.assigned_tensors().items():
        if any(one.rule in _OF_MOVES and f"'{path}'" in one.what for one in engine):
            _add(result, assigned)
    if not any(one.rule == "PG1001" for one in engine):
        for optimizer in frameworks.host_optimizers():
            _add(result, optimizer)
    for number, change in host.changed_numbers().values():
        if not _is_explained(change, engine, host):
            _add(result, number)
    return result


def _add(report: "_C.AuditReport", found: Found) -> None:
    """Unless it is there."""
    key = (found.rule, found.place.file, found.place.line)
    if not found.place.known or all((one.rule, one.file, one.line) != key for one in report.findings):
        report.add(found.as_finding())


def _is_pythons(found: Any, findings: Findings) -> bool:
    return any(_key(one) == (found.rule, found.file, found.line, found.op) for one in findings)


def _key(found: Found) -> tuple:
    return found.rule, found.place.file, found.place.line, found.op


class _Doubles:
    """Which findings stay."""

    def __init__(self, report: "_C.AuditReport", findings: Findings) -> None:
        self._own = {_key(one) for one in findings}
        self._hidden: dict[tuple, set[str]] = {}  # by line: rules that are told otherwise
        for one in findings:
            self._hidden.setdefault((one.place.file, one.place.line), set()).update(_CONSEQUENCES.get(one.rule, ()))
        self._engine: dict[tuple, set[str]] = {}
        for found in report.findings:
            if (found.rule, found.file, found.line, found.op) not in self._own:
                self._engine.setdefault((found.file, found.line), set()).add(found.rule)
        self._failed = any(found.severity == "breaks capture" and found.rule in ("PG1202", "PG908") for found in report.findings)
        # The engine sees that a generator was moved, and Python where.
        self._moved = findings.has("PG602") or findings.has("PG605")

    def is_told_once(self, found: Any) -> bool:
        line = (found.file, found.line)
        if (found.rule, *line, found.op) in self._own:
            return not self._engine.get(line, set()) & _BETTER_TOLD.get(found.rule, set())
        if (self._moved and found.rule in ("PG602", "PG605")) or (self._failed and found.rule == "PG1201"):
            return False
        return not found.file or found.rule not in self._hidden.get(line, ())


def _is_explained(change: Change, engine: list, host: HostState) -> bool:
    """Whether the engine showed what the changed number does."""
    if any(one.rule in _OF_PATHS for one in engine):
        return True
    texts = {repr(change.before.value), repr(change.after.value)}
    name = last_name(change.path)
    for one in engine:
        if one.rule in _OF_NUMBERS:
            if any(text in one.evidence for text in texts) or name in names_on(one.file, one.line, host.codes()):
                return True
    return False
