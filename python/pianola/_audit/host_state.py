"""What the step does to Python's variables, attributes and containers, over the runs of an audit."""

import collections
from types import CodeType
from typing import Any, Callable, Optional

import torch

from .._load import _C
from .._structure import of_arguments
from . import changes
from .changes import Change
from .files import PACKAGE, Place, kind_of_file
from .findings import Findings, Found
from .locate import Locator, assignment_of, first_mention
from .marks import Mark
from .module_tree import ModuleTrees
from .reach import Walk, functions_of, roots_of
from .target import Arguments, Target

_WORDS = {
    "PG604": "random numbers of '{}' are drawn on the host",
    "PG801": "the step changes the container '{}'",
    "PG802": "the step gives '{}' another tensor, which the next iteration reads",
    "PG803": "the step changes '{}'",
    "iterator": "the step takes the next entry of '{}'",
    "PG304": "'{}' changes between iterations",
}


def _is_of_package(code: CodeType) -> bool:
    """What is inside of a function of a package lives as long as one call, unless the step's own objects reach it."""
    return bool(kind_of_file(code.co_filename) & PACKAGE)


class HostState:
    """Looks before and after each run, and compares.

    Args:
        target: the step.
        watch: tells which functions ran.
    """

    def __init__(self, target: Target, watch: "_C.PythonWatch") -> None:
        self._target = target
        self._watch = watch
        self._roots = roots_of(target.step)
        self._trees = ModuleTrees()
        self._looked_for: set[CodeType] = set()
        self._during: dict[str, tuple[Change, int]] = {}  # by place: the first change, and the run
        self._runs: collections.Counter[str] = collections.Counter()  # in which a place changed
        self._iterations = 0
        self._between: dict[str, tuple[Change, int]] = {}
        self._places: dict[str, Place] = {}
        self._before: Optional[Walk] = None
        self._after: Optional[Walk] = None
        self._numbers: dict[str, Any] = {}  # among the arguments
        self.saw_all = True

    def walk(self, trail: bool = False) -> Walk:
        """A look at what the step can reach now."""
        return Walk(self._roots, self._watch.executed(), self._trees, trail)

    def walk_again(self, is_same: bool) -> Walk:
        """The same before a run; `is_same` where nothing happened since the run before."""
        walk = self._after if is_same and self._after is not None else self.walk()
        strange = {code for code in self.codes() if code.co_freevars and code not in walk.codes and not _is_of_package(code)} - self._looked_for
        if not strange:
            return walk
        self._looked_for |= strange
        self._roots += functions_of(strange)
        return self.walk()

    def begin(self, walk: Walk, arguments: Arguments, iteration: int) -> None:
        """Before a run."""
        if self._after is not None:
            for change in changes.between(self._after, walk):
                self._between.setdefault(change.path, (change, iteration))
        numbers = self._numbers_of(arguments)
        for name, value in numbers.items():
            before = self._numbers.get(name, value)
            if type(before) is type(value) and before != value:
                change = Change("PG304", name, Mark("number", before), Mark("number", value))
                self._between.setdefault(name, (change, iteration))
        self._numbers = numbers
        self._before = walk

    def end(self, iteration: int) -> None:
        """After it."""
        assert self._before is not None
        self._after = self.walk()
        self.saw_all &= self._after.is_complete
        self._iterations += 1
        for change in changes.during(self._before, self._after):
            self._during.setdefault(change.path, (change, iteration))
            self._runs[change.path] += 1
        self._drop_torchs_own()

    def wants_lines(self, findings: Findings) -> bool:
        """Whether another run could tell on which lines things change."""
        return any(not _is_known(change, findings) for change, _ in self._during.values())

    def locate(self, run: Callable[[], Any]) -> None:
        """Runs the step once more, slowly."""
        locator = Locator(self.walk(trail=True), self._during)
        try:
            locator.run(run)
        finally:
            self._places = locator.found

    def add_changes(self, findings: Findings) -> None:
        """What changed. Tensors that were assigned are hazards only if somebody reads them: see assigned_tensors()."""
        for change, iteration in self._during.values():
            if change.rule != "PG802" and not _is_known(change, findings) and not self._is_filled_once(change):
                findings.add(self._found(change, iteration), detail=change.path if not self._place_of(change).known else "")

    def assigned_tensors(self) -> dict[str, Found]:
        """By what the engine calls them."""
        return {path: self._found(*one) for path, one in self._during.items() if one[0].rule == "PG802"}

    def changed_numbers(self) -> dict[str, tuple[Found, Change]]:
        """Numbers that changed between runs, of those that the step reads."""
        words = {word for code in self.codes() for word in changes.words_of(code)}
        return {
            path: (self._found(change, iteration), change)
            for path, (change, iteration) in self._between.items()
            if path in self._numbers or changes.last_name(path) in words
        }

    def codes(self) -> list[CodeType]:
        """Of the user's functions that ran."""
        return [code for code, _ in self._watch.executed()]

    # --- Details ---

    def _is_filled_once(self, change: Change) -> bool:
        """Whether it is a container of an installed package, which one run fills and the others find filled: a cache."""
        if change.rule != "PG801" or self._iterations < 2 or self._runs[change.path] > 1:
            return False
        return bool(kind_of_file(self._place_of(change).file) & PACKAGE)

    def _numbers_of(self, arguments: Arguments) -> dict[str, Any]:
        _, structure = of_arguments(*arguments)
        names = self._target.names_of(*arguments)
        frozen = {names[i]: value for i, value in structure.frozen if i < len(names)}
        return {name: value for name, value in frozen.items() if isinstance(value, (bool, int, float, str))}

    def _drop_torchs_own(self) -> None:
        """What torch's objects count for themselves is their business, unless the user's code counts there."""
        assert self._after is not None
        own = [path for path in self._during if path in self._after.torchs_own and not self._is_assigned(path)]
        for path in own:
            del self._during[path]

    def _is_assigned(self, path: str) -> bool:
        return assignment_of(changes.last_name(path), self.codes()).known

    def _place_of(self, change: Change) -> Place:
        place = self._places.get(change.path, Place())
        if place.known or change.rule == "PG604":
            return place
        if change.rule == "PG304":
            return first_mention(changes.last_name(change.path), self.codes())
        return assignment_of(changes.last_name(change.path), self.codes())

    def _found(self, change: Change, iteration: int) -> Found:
        words = _WORDS["iterator" if change.before.kind == "iterator" else change.rule]
        return Found(
            change.rule,
            self._place_of(change),
            op=change.path if change.rule == "PG604" else "",
            what=words.format(change.path),
            evidence=change.evidence(),
            iteration=iteration,
        )


def _is_known(change: Change, findings: Findings) -> bool:
    """Python's own generator is seen at work, with the line."""
    return change.rule == "PG604" and change.path == "random" and findings.has("PG604", "random.")


def names_of_tensors(target: Target, walk: Walk, arguments: Arguments) -> list[tuple[str, torch.Tensor]]:
    """What people call the tensors that a run begins with."""
    inputs, structure = of_arguments(*arguments)
    leaves = target.names_of(*arguments)
    frozen = {i for i, _ in structure.frozen}
    named = [name for i, name in enumerate(leaves) if i not in frozen]
    names = list(zip(named, inputs)) if len(named) == len(inputs) else []
    for path, tensor in walk.tensors():
        names.append((path, tensor))
        if tensor.is_leaf and tensor.grad is not None:
            names.append((f"{path}.grad", tensor.grad))
    return names
