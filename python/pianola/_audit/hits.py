"""From calls that were watched for to hazards."""

from typing import Optional

from .._load import _C
from . import files
from .files import Place
from .findings import Findings, Found
from .table import Table, Watched

_OUTPUT = ("print", "logging", "write", "warnings.warn")


def take_hits(table: Table, device: str, iteration: int, findings: Findings) -> None:
    """Adds what the watch saw in a run."""
    seen: dict[tuple, Found] = {}
    ops: set[tuple[str, Place]] = set()
    for hit in table.watch.hits():
        watched = table.of(hit)
        rule = _rule_of(hit, watched, device)
        if rule is None:
            continue
        place = Place(hit.function, hit.file, hit.line)
        if watched.part_of and (watched.part_of, place) in ops:
            continue
        ops.add((watched.op, place))
        for one in (rule, watched.also) if watched.also else (rule,):
            if (one, place) not in seen:  # else it is what the call does to do its work
                seen[one, place] = Found(
                    one,
                    place,
                    op=watched.op,
                    what=_WHAT.get(one, watched.what),
                    module=hit.module,
                    severity=_severity_of(one, watched, device),
                    iteration=iteration,
                    times=hit.times,
                )
    _join_prints(seen)
    for found in seen.values():
        findings.add(found)


_WHAT = {"PG605": "activation checkpointing saves the generators' states, to draw the same numbers again in backward"}


def _severity_of(rule: str, watched: Watched, device: str) -> str:
    if watched.op == "random.seed":  # nothing that a capture would notice
        return "wrong numbers"
    # A graph of CUDA's repeats that faithfully where it holds the forward and the backward pass.
    return "style" if rule == "PG605" and device == "cuda" else ""


def _rule_of(hit: "_C.PythonHit", watched: Watched, device: str) -> Optional[str]:
    """None where it means nothing: torch's own doings, and what the compiler does while it compiles."""
    through = hit.through
    if watched.rule == "PG1005":
        return watched.rule
    if not watched.rule:
        return None
    if through & (files.COMPILER | files.WARNINGS) or (watched.own and (through & files.TORCH or not hit.file)):
        return None
    if watched.wanted is not None and not watched.wanted(hit, device):
        return None
    if through & files.CHECKPOINT and watched.rule in ("PG602", "PG603"):
        is_recomputation = watched.rule == "PG602" or through & files.BACKWARD
        return None if is_recomputation else "PG605"
    return watched.rule


def _join_prints(seen: dict[tuple, Found]) -> None:
    """print(tensor) is one hazard, of the tensor."""
    for (rule, place), found in list(seen.items()):
        if rule == "PG104":
            output = seen.get(("PG804", place))
            if output is not None and output.op in _OUTPUT:
                del seen["PG804", place]
                found.op = output.op
                found.what = f"{'print' if output.op == 'print' else 'the log'} reads a tensor's values"
