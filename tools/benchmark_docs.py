"""Makes bench/results/*/README.md from the committed results beside it.

    benchmark_docs.py            write the pages
    benchmark_docs.py --check    fail if a page is not what the results make
"""

import itertools
import json
import sys

from generated_pages import ROOT, write_or_check

RESULTS = ROOT / "bench/results"

HEAD = """# All results: {folder}

`tools/benchmark_docs.py` makes this page from the JSON files beside it. [Results](../../../docs/guide/results.md) is the page to
read first; [bench/results](../README.md) says what the files hold and what writes them.

The contenders of a table ran in turn, block by block, in one process; with and without a recorder, in two that took turns. Each
first showed that it computes what eager mode does: Pianola bit for bit, torch.compile up to rounding. *Median*, *min* and *spread*
(third quartile minus first) are over the samples; a sample is the mean of its iterations. *Ratio* is the ratio of medians. Compare
ratios, not times of different machines.
"""

MACHINE_WORDS = {
    "processor": "processor",
    "cores": "cores",
    "device": "device",
    "device_memory": "device memory",
    "driver": "driver",
    "cuda": "CUDA",
    "torch": "torch",
    "pianola": "Pianola",
    "compiler": "compiler",
    "python": "Python",
}


def number(value):
    """With thousands separated, and digits after the point only where they say something."""
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.{0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2}f}"


def row(*cells):
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def is_single(cases):
    """Whether there is nothing to take medians of."""
    return all(len(contender["samples"]) == 1 for case in cases for contender in case["contenders"])


def sampling(cases):
    """How often was measured: "20 samples of 50 iterations"; "10 samples of 20 to 60 iterations"."""
    counts = sorted({len(contender["samples"]) for case in cases for contender in case["contenders"]})
    iterations = sorted({case["iterations_per_sample"] for case in cases})
    words = [" to ".join(str(value) for value in dict.fromkeys((values[0], values[-1]))) for values in (counts, iterations)]
    return f"{words[0]} samples of {words[1]} iteration{'s' if iterations[-1] > 1 else ''}"


def case_text(case):
    unit = case["unit"]
    single = is_single([case])
    lines = [f"**{case['case']}** ({case['measure']}{'' if single else f'; {sampling([case])}'})", ""]
    if single:
        lines += [row("", unit), row("---", "---:")]
        lines += [row(contender["contender"], number(contender["median"])) for contender in case["contenders"]]
    else:
        lines += [row("", f"median, {unit}", "min", "spread", "ratio"), row("---", *["---:"] * 4)]
        for contender in case["contenders"]:
            figures = [number(contender[key]) for key in ("median", "min", "spread")]
            lines.append(row(contender["contender"], *figures, f"{contender['ratio']:.3f}" if "ratio" in contender else ""))
    lines += ["", *requirement_lines(case), *note_lines(case)]
    return "\n".join(lines) + "\n"


def note_lines(noted, prefix=""):
    """What a case or a result says about its figures, or about those that are not there."""
    return [f"- {prefix}Note: {note}" for note in noted.get("notes", ())]


def requirement_lines(case, prefix=""):
    lines = []
    for requirement in case["requirements"]:
        verdict = "met" if requirement["met"] else "**missed**"
        figures = f"{number(requirement['measured'])} (limit {number(requirement['limit'])})"
        lines.append(f"- {prefix}{requirement['requirement']}: {figures}, {verdict}")
    return lines


def family(case):
    """Cases "A: x" and "A: y" that measure the same of the same contenders make one table; others one each."""
    name, separator, _ = case["case"].partition(": ")
    contenders = [contender["contender"] for contender in case["contenders"]]
    return name if separator else case["case"], case["measure"], case["unit"], case["baseline"], contenders


def family_text(cases):
    """One table with a row per case, of medians."""
    name, measure, unit, baseline, contenders = family(cases[0])
    others = [contender for contender in contenders if contender != baseline] if baseline else []
    ratios = [f"{other}: ratio" if len(others) > 1 else "ratio" for other in others]
    figures = unit if is_single(cases) else f"medians, {unit}; {sampling(cases)}"
    lines = [f"**{name}** ({measure}; {figures})", "", row("", *contenders, *ratios)]
    lines.append(row("---", *["---:"] * (len(contenders) + len(ratios))))
    requirements = []
    for case in cases:
        label = case["case"].partition(": ")[2]
        by_name = {contender["contender"]: contender for contender in case["contenders"]}
        medians = [number(by_name[contender]["median"]) for contender in contenders]
        lines.append(row(label, *medians, *[f"{by_name[other]['ratio']:.3f}" for other in others]))
        requirements += requirement_lines(case, f"{label}: ") + note_lines(case, f"{label}: ")
    return "\n".join([*lines, "", *requirements]) + "\n"


def side_by_side_text(cases):
    """One table of cases that measure the same contenders in different ways: a row per contender, two columns per case."""
    units = dict.fromkeys(case["unit"] for case in cases)
    lines = [f"**{cases[0]['table']}** (medians, {', '.join(units)}; {sampling(cases)})", ""]
    lines.append(row("", *(cell for case in cases for cell in (case["measure"], "ratio"))))
    lines.append(row("---", *["---:"] * (2 * len(cases))))
    for same in zip(*(case["contenders"] for case in cases), strict=True):
        figures = [cell for one in same for cell in (number(one["median"]), f"{one['ratio']:.3f}")]
        lines.append(row(same[0]["contender"], *figures))
    remarks = [line for case in cases
               for line in requirement_lines(case, f"{case['measure']}, ") + note_lines(case)]
    return "\n".join([*lines, "", *remarks]) + "\n"


def cases_text(cases):
    texts = []
    for table, group in itertools.groupby(cases, lambda case: case.get("table")):
        if table is not None:
            texts.append(side_by_side_text(list(group)))
            continue
        families = [list(same) for _, same in itertools.groupby(group, family)]
        texts += [family_text(same) if len(same) > 1 else case_text(same[0]) for same in families]
    return texts


def result_text(result, command, heading="##"):
    if result.get("error"):
        sys.exit(f"benchmark_docs.py: {result['benchmark']} failed ({result['error']}): run it again first.")
    head = f"{heading} {result['title']}\n\n`{result['benchmark']}`: `{command}`\n"
    notes = ["\n".join(note_lines(result)) + "\n"] if "notes" in result else []
    return "\n".join([head] + notes + cases_text(result["cases"]))


def is_from_python(document):
    """Whether bench/python made it, which measures the Python package."""
    return document["results"][0]["benchmark"].partition("/")[2].startswith("python_")


def machine_text(documents):
    machine = documents[0]["machine"]
    facts = [f"{words} {machine[key]}" for key, words in MACHINE_WORDS.items() if key in machine]
    return ", ".join(facts) + "." + others_text(documents, machine)


def others_text(documents, machine):
    """Which of them are of another device, or of a host with other cores."""
    others = {}
    for document in documents:
        other = document["machine"]
        if (other.get("device"), other["cores"]) != (machine.get("device"), machine["cores"]):
            names = others.setdefault(f"{other.get('device', other['processor'])}, {other['cores']} cores", [])
            names += [f"`{result['benchmark']}`" for result in document["results"]]
    return "".join(f" {', '.join(names)}: {where}." for where, names in others.items())


def summary_text(documents):
    lines = [row("benchmark", "case", "requirement", "measured", "limit", ""), row("---", "---", "---", "---:", "---:", "---")]
    for document in documents:
        for result in document["results"]:
            for case in result["cases"]:
                for wanted in case["requirements"]:
                    figures = (number(wanted["measured"]), number(wanted["limit"]))
                    verdict = "met" if wanted["met"] else "**missed**"
                    lines.append(row(result["benchmark"], case["case"], wanted["requirement"], *figures, verdict))
    return "\n".join(lines) + "\n"


def folder_text(folder):
    documents = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    parts = [HEAD.format(folder=folder.name), machine_text(documents) + "\n", "## Requirements\n", summary_text(documents)]
    from_python = [document for document in documents if is_from_python(document)]
    parts += results_text([document for document in documents if document not in from_python])
    if from_python:
        parts += ["## From Python\n", *results_text(from_python, heading="###")]
    return "\n".join(parts)


def results_text(documents, heading="##"):
    return [result_text(result, document["command"], heading) for document in documents for result in document["results"]]


def pages():
    """{page: its text}"""
    folders = sorted(folder for folder in RESULTS.iterdir() if any(folder.glob("*.json")))
    return {folder / "README.md": folder_text(folder) for folder in folders}


if __name__ == "__main__":
    sys.exit(write_or_check(__doc__, pages))
