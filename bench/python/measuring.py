"""How all benchmarks in Python measure: contenders of one process that take turns and are checked first, and the cases made of
their samples, as pianola_bench reports them (bench/results/README.md has the schema)."""

import statistics
import time

import torch

MEDIAN_DIGITS = 4


def synchronize():
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measure(iteration, iterations, burst):
    """Times as time_bursts() in bench/harness.hpp does."""
    for _ in range(2):
        iteration()
    synchronize()
    host = wall = 0
    for done in range(0, iterations, burst):
        start = time.perf_counter_ns()
        for _ in range(min(burst, iterations - done)):
            iteration()
        host += time.perf_counter_ns() - start
        synchronize()
        wall += time.perf_counter_ns() - start
    return {"host": host / iterations / 1000, "wall": wall / iterations / 1000}


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
            for kind, series in samples[name].items():
                if turn >= 0:
                    series.append(taken[kind])
    return samples


def series(samples, kind):
    """Of the times that alternate() returned, "host" or "wall"."""
    return {name: taken[kind] for name, taken in samples.items()}


def check_equal(what, actual, expected):
    """Compares lists of tensors bit by bit; a gradient may be None on both sides."""
    if len(actual) != len(expected):
        raise RuntimeError(f"{what}: {len(actual)} tensors, but eager has {len(expected)}")
    for i, (one, other) in enumerate(zip(actual, expected)):
        same = one is other if one is None or other is None else torch.equal(one, other)
        if not same:
            raise RuntimeError(f"{what}: tensor {i} of {len(expected)} differs from eager's; "
                               f"times of wrong results mean nothing")


def spread(samples):
    """Third quartile less first, as in bench/harness.cpp."""
    if len(samples) < 2:
        return 0.0
    first, _, third = statistics.quantiles(samples, n=4, method="inclusive")
    return third - first


def rounded(value):
    return round(value, MEDIAN_DIGITS)


def case(name, measured, iterations, baseline, samples, unit="us", notes=()):
    """`samples`: contender -> samples in that unit. `notes`: what a reader of the figures has to know."""
    base = statistics.median(samples[baseline])
    contenders = [
        {
            "contender": contender,
            "median": rounded(statistics.median(taken)),
            "min": rounded(min(taken)),
            "spread": rounded(spread(taken)),
            "ratio": rounded(statistics.median(taken) / base),
            "samples": [rounded(sample) for sample in taken],
        }
        for contender, taken in samples.items()
    ]
    made = {
        "case": name,
        "measure": measured,
        "unit": unit,
        "iterations_per_sample": iterations,
        "baseline": baseline,
        "contenders": contenders,
        "requirements": [],
    }
    return made | {"notes": list(notes)} if notes else made


def require(target, text, measured, limit, met):
    target["requirements"].append({"requirement": text, "met": met, "measured": rounded(measured), "limit": rounded(limit)})


def require_speedup(target, contender, baseline, series, limit):
    speedup = statistics.median(series[baseline]) / statistics.median(series[contender])
    require(target, f"{contender}: at least {limit:g}x as fast as {baseline}", speedup, limit, speedup >= limit)


def require_ratio(target, contender, of, samples, base_samples, limit):
    ratio = statistics.median(samples) / statistics.median(base_samples)
    require(target, f"{contender}: at most {limit:g}x of {of}", ratio, limit, ratio <= limit)


def require_within(target, contender, baseline, samples, limit):
    """`contender` takes at most `limit` more than `baseline`, in the unit of the case."""
    excess = statistics.median(samples[contender]) - statistics.median(samples[baseline])
    require(target, f"{contender}: at most {limit:g} {target['unit']} above {baseline}", excess, limit, excess <= limit)


def to_text(one):
    lines = [f"{one['case']} ({one['measure']}), {one['iterations_per_sample']} iterations per sample"]
    width = max(len(contender["contender"]) for contender in one["contenders"])
    lines.append(f"  {'':{width}}  {'median':>10}  {'min':>10}  {'spread':>10}  {'ratio':>8}   [{one['unit']}]")
    for contender in one["contenders"]:
        figures = "  ".join(f"{contender[key]:10.2f}" for key in ("median", "min", "spread"))
        lines.append(f"  {contender['contender']:{width}}  {figures}  {contender['ratio']:8.3f}")
    for wanted in one["requirements"]:
        verdict = "MET   " if wanted["met"] else "MISSED"
        lines.append(f"{verdict} {wanted['requirement']}: measured {wanted['measured']:.4g}, limit {wanted['limit']:g}")
    return "\n".join(lines)
