"""What changed on the host during a run of the step, or between two."""

import re
from types import CodeType
from typing import Iterator, NamedTuple, Optional

from .marks import Mark, has_other_members, same
from .reach import Walk


class Change(NamedTuple):
    rule: str
    path: str
    before: Mark
    after: Mark

    def evidence(self) -> str:
        if self.before.kind == "tensor" and self.after.kind == "tensor":
            return f"{self.path} was one tensor before the run and is another one after it"
        if self.before.kind == "random":
            return f"the state of {self.path} moved during the run"
        if self.before.kind == "iterator":
            return f"{self.path} is at another place after the run"
        if self.before.kind == "container" and self.before.value[:2] == self.after.value[:2]:
            return f"{self.path}: {self.before.text()} before the run, with other entries after it"
        when = ("before the run", "after it")
        if self.rule == "PG304":
            when = ("at the end of one run", "at the begin of the next")
        return f"{self.path}: {self.before.text()} {when[0]}, {self.after.text()} {when[1]}"


def during(before: Walk, after: Walk) -> list[Change]:
    """What the step did to what is not a tensor's memory, and which places got another tensor (PG802: if they are read)."""
    found: list[Change] = []
    changed_containers: list[str] = []
    for path, old in before.marks.items():
        new = after.marks.get(path)
        if new is None or new is old or same(old, new) or path.startswith(tuple(changed_containers)):
            continue
        rule = _rule_of(path, old, new)
        if rule is None:
            continue
        if rule == "PG801":
            changed_containers.append(path + "[")
        found.append(Change(rule, path, old, new))
    return found


def _rule_of(path: str, old: Mark, new: Mark) -> Optional[str]:
    kinds = {old.kind, new.kind}
    if kinds == {"container"}:
        return "PG801" if has_other_members(old, new) else None
    if "tensor" in kinds:
        return "PG802" if new.kind == "tensor" else None
    if kinds == {"random"}:
        return "PG604"
    return "PG803" if kinds in ({"number"}, {"iterator"}) else None


def between(after: Walk, before: Walk) -> list[Change]:
    """Numbers that are others in the next run than at the end of the last one."""
    found = []
    for path, old in after.marks.items():
        new = before.marks.get(path)
        if new is None or new is old or not old.kind == new.kind == "number":
            continue
        if path not in before.torchs_own and not same(old, new):
            found.append(Change("PG304", path, old, new))
    return found


def last_name(path: str) -> str:
    """What code has to say to get there: "lr" of "config['lr']", "steps" of "self.steps[0]"."""
    name = re.sub(r"(\[-?\d+\])+$", "", path)
    key = re.search(r"\['([^']*)'\]$", name)
    return key[1] if key else name.rsplit(".", 1)[-1]


def words_of(code: CodeType) -> Iterator[str]:
    """Everything that the code can name: variables, attributes, and strings that may be keys."""
    yield from code.co_names
    yield from code.co_freevars
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, tuple):
            yield from (entry for entry in constant if isinstance(entry, str))
