"""Cases as pianola_bench reports them: bench/results/README.md has the schema."""

import statistics

MEDIAN_DIGITS = 4


def spread(samples):
    """Third quartile less first, as in bench/harness.cpp."""
    if len(samples) < 2:
        return 0.0
    first, _, third = statistics.quantiles(samples, n=4, method="inclusive")
    return third - first


def rounded(value):
    return round(value, MEDIAN_DIGITS)


def case(name, measure, iterations, baseline, series):
    """`series`: contender -> samples in microseconds."""
    base = statistics.median(series[baseline])
    contenders = [
        {
            "contender": contender,
            "median": rounded(statistics.median(samples)),
            "min": rounded(min(samples)),
            "spread": rounded(spread(samples)),
            "ratio": rounded(statistics.median(samples) / base),
            "samples": [rounded(sample) for sample in samples],
        }
        for contender, samples in series.items()
    ]
    return {
        "case": name,
        "measure": measure,
        "unit": "us",
        "iterations_per_sample": iterations,
        "baseline": baseline,
        "contenders": contenders,
        "requirements": [],
    }


def _require(target, text, measured, limit, met):
    target["requirements"].append({"requirement": text, "met": met, "measured": rounded(measured), "limit": limit})


def require_speedup(target, contender, baseline, series, limit):
    speedup = statistics.median(series[baseline]) / statistics.median(series[contender])
    _require(target, f"{contender}: at least {limit:g}x as fast as {baseline}", speedup, limit, speedup >= limit)


def require_ratio(target, contender, of, samples, base_samples, limit):
    ratio = statistics.median(samples) / statistics.median(base_samples)
    _require(target, f"{contender}: at most {limit:g}x of {of}", ratio, limit, ratio <= limit)


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
