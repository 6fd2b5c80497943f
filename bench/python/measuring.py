"""Contenders of one process that take turns, what they are checked by, and the cases made of their samples."""

import statistics

import case_report
import torch
from torch_worker import measure


def alternate(contenders, iterations, burst, rounds):
    """Samples of each contender (name -> function): {name: {"host": [...], "wall": [...]}}, us per iteration.

    Each round begins with another contender; one comes before that does not count.
    """
    names = list(contenders)
    samples = {name: {"host": [], "wall": []} for name in names}
    for turn in range(-1, rounds):
        for i in range(len(names)):
            name = names[(i + turn) % len(names)]
            taken = measure(contenders[name], iterations, burst)
            for time, series in samples[name].items():
                if turn >= 0:
                    series.append(taken[time])
    return samples


def series(samples, time):
    """Of the times that alternate() returned, "host" or "wall"."""
    return {name: taken[time] for name, taken in samples.items()}


def check_equal(what, actual, expected):
    """Compares lists of tensors bit by bit; a gradient may be None on both sides."""
    if len(actual) != len(expected):
        raise RuntimeError(f"{what}: {len(actual)} tensors, but eager has {len(expected)}")
    for i, (one, other) in enumerate(zip(actual, expected)):
        same = one is other if one is None or other is None else torch.equal(one, other)
        if not same:
            raise RuntimeError(f"{what}: tensor {i} of {len(expected)} differs from eager's; "
                               f"times of wrong results mean nothing")


def case(name, measured, iterations, baseline, samples, unit="us", notes=()):
    """As case_report.case(), in any unit, and with notes: what a reader of the figures has to know."""
    made = case_report.case(name, measured, iterations, baseline, samples) | {"unit": unit}
    return made | {"notes": list(notes)} if notes else made


def require_within(target, contender, baseline, samples, limit):
    """`contender` takes at most `limit` more than `baseline`, in the unit of the case."""
    excess = statistics.median(samples[contender]) - statistics.median(samples[baseline])
    target["requirements"].append({
        "requirement": f"{contender}: at most {limit:g} {target['unit']} above {baseline}",
        "met": excess <= limit,
        "measured": case_report.rounded(excess),
        "limit": limit,
    })
