"""What Python found, gathered: each hazard once per place, with the run in which it was seen first."""

import dataclasses
from typing import Iterator

from .._load import _C
from .files import Place


@dataclasses.dataclass
class Found:
    """A finding in the making."""

    rule: str
    place: Place = Place()
    op: str = ""
    what: str = ""
    evidence: str = ""
    fix: str = ""
    module: str = ""
    severity: str = ""
    iteration: int = 0
    times: int = 1

    def as_finding(self) -> "_C.Finding":
        return _C.Finding(
            self.rule,
            severity=self.severity,
            op=self.op,
            module=self.module,
            place=self.place,
            what=self.what,
            evidence=self.evidence,
            fix=self.fix,
            iteration=self.iteration,
            times=self.times,
        )


class Findings:
    """All of them, in the order in which they were found."""

    def __init__(self) -> None:
        self._by_place: dict[tuple, Found] = {}

    def add(self, found: Found, detail: str = "") -> None:
        """Of one rule at one place the first one stays; `detail` tells those apart that have no place, or one together."""
        known = self._by_place.setdefault((found.rule, found.place, detail), found)
        if known is not found:
            known.times += found.times

    def __iter__(self) -> Iterator[Found]:
        return iter(self._by_place.values())

    def has(self, rule: str, op: str = "") -> bool:
        """Whether there is one of this rule, of an operation whose name begins like that."""
        return any(one.rule == rule and one.op.startswith(op) for one in self)
