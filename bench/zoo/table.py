"""Makes the zoo's page from its results: what replays as it stands, what does not and why, and what it gains.

    bench/zoo/table.py [FILE]                    print the page; FILE is bench/results/h200/zoo/zoo.json if it is not given
    bench/zoo/table.py [FILE] --to PAGE          write it
    bench/zoo/table.py [FILE] --to PAGE --check  fail if the page is another one
"""

import argparse
import json
import re
import statistics
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import cases  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "bench/results/h200/zoo/zoo.json"
EAGER, PIANOLA = "eager", "@pianola.graphed"
OTHERS = {"torch.cuda.graph": "torch.cuda.graph", "torch.cuda.make_graphed_callables": "graphed callables",
          'torch.compile(mode="reduce-overhead")': "torch.compile", '@pianola.graphed(compile="auto")': 'compile="auto"'}
GRAPH, CALLABLES, COMPILE, AUTO = OTHERS
LAUNCH_BOUND = 0.7  # the most of eager's time that a graph's replay may take

HEAD = """# The zoo

`bench/zoo/table.py` makes this page from {file}. Machine: {machine}.

{count} training and inference steps as people have written them, on {device}, size {size}. `@pianola.graphed` on the step is the only
change. Each contender ran as many calls as its row counts ({calls} in most) from the seeds of eager, and all that it returned and left
(parameters, gradients, buffers, the optimizer's state, random numbers) was compared bit by bit. An empty cell was not run. A step *depends on values* if a value on the device decides which
operations run, or which numbers they are given; it replays where the value mostly leads the same way
([steps that read values](../guide/reads.md)). The classes were set down before the work. A step
replays if at least half of its calls did.

**{replayed} of {static} static steps replay and are bit-equal ({share:.0f} %); {wrong} of all computed something else, {crashed} failed.**
"""


def row(*cells):
    return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def differs(one):
    return one["zoo"].get("differs", {}).get(PIANOLA, "")


def replays(one):
    """At least half of its calls did."""
    return 2 * one["zoo"].get("replayed", 0) >= one["zoo"].get("calls", 1)


def is_good(one):
    return replays(one) and not differs(one)


def ratio(one, way):
    """How many times as fast as eager; empty where it was not timed."""
    by_name = {contender["contender"]: contender for contender in one.get("contenders", ())}
    return f"{1 / by_name[way]['ratio']:.2f}x" if way in by_name and by_name[way]["ratio"] else ""


def other(one, way):
    text = one["zoo"].get("differs", {}).get(way)
    if text is None:
        return ""
    return ratio(one, way) or ("fails" if "Error" in text.split(":")[0] else "differs")


def equality(one):
    if "crashed" in one["zoo"]:
        return "**failed**"
    if not differs(one):
        return "equal"
    return "eager differs from itself" if one["zoo"].get("eager_differs_from_itself") else "**differs**"


def reason_of(one):
    """One sentence: the first that stands for a call that stayed eager."""
    zoo = one["zoo"]
    if "crashed" in zoo:
        return zoo["crashed"]
    said = [*zoo["reasons"], *zoo["said"]]
    if differs(one):
        return differs(one)
    text = said[0] if said else "no call says why; it was still warming up" if not replays(one) else ""
    return text.splitlines()[0] if text else ""


def memory(one):
    held = one["zoo"].get("memory", {})
    if not held.get(EAGER) or not held.get(PIANOLA):
        return ""
    return f"{held[PIANOLA] / held[EAGER]:.2f}x"


def table(rows):
    timed = any(one.get("contenders") for one in rows)
    ways = [way for way in OTHERS if any(way in one["zoo"].get("differs", {}) for one in rows)]
    head = ["step", "class", "replayed", "bits"]
    head += ["against eager", *(OTHERS[way] for way in ways), "memory"] if timed else []
    lines = [row(*head), row(*["---"] * len(head))]
    for one in rows:
        zoo = one["zoo"]
        cells = [f"`{one['case']}`", zoo["kind"], f"{zoo.get('replayed', 0)} of {zoo.get('calls', 0)}", equality(one)]
        cells += [ratio(one, PIANOLA), *(other(one, way) for way in ways), memory(one)] if timed else []
        lines.append(row(*cells))
    return lines


def misses(rows):
    missed = [one for one in rows if not is_good(one)]
    lines = [row("step", "class", "why"), row("---", "---", "---")]
    return lines + [row(f"`{one['case']}`", one["zoo"]["kind"], reason_of(one)) for one in missed]


def gains(rows):
    """Of those that replay: how many times as fast."""
    made = [1 / contender["ratio"] for one in rows if is_good(one) for contender in one.get("contenders", ())
            if contender["contender"] == PIANOLA and contender["ratio"]]
    return f"Those that replay are {min(made):.2f} to {max(made):.1f} times as fast as eager; the median is {statistics.median(made):.2f}." \
        if made else ""


def median_of(one, way):
    return next((contender["median"] for contender in one.get("contenders", ()) if contender["contender"] == way), None)


def compared(rows, ours, others):
    """[(case, how many times as fast as the best of the others, whether eager was bound by its launches)] where both were timed."""
    made = []
    for one in rows:
        taken, best = median_of(one, ours), [time for way in others if (time := median_of(one, way))]
        if taken and best and is_good(one):
            serial = median_of(one, GRAPH) or taken  # ours may have lanes
            made.append((one["case"], min(best) / taken, serial < LAUNCH_BOUND * median_of(one, EAGER)))
    return made


def lanes(rows):
    """Who was given lanes, and why others were not."""
    told = Counter(words_of(reason) for one in rows for reason in one["zoo"].get("lanes", ()))
    lines = [row(reason, count) for reason, count in told.most_common()]
    return ["## Lanes", "", row("lanes, or why none", "graphs"), row("---", "---"), *lines, ""] if told else []


def words_of(lanes):
    """A reason without its figures and names; a count of lanes as it is."""
    return lanes if lanes.isdigit() else re.sub(r"'[^']*'", "...", re.sub(r"\d[\d.]*", "#", lanes)).partition("[")[0].strip()


def comparison(rows):
    """Against the best of what torch has, one line for each kind."""
    lines = []
    for ours, others, who in ((PIANOLA, (GRAPH, CALLABLES), "the better of torch.cuda.graph and make_graphed_callables"),
                              (AUTO, (GRAPH, CALLABLES, COMPILE), "the best of these and torch.compile(mode=\"reduce-overhead\")")):
        made = compared(rows, ours, others)
        for kind, some in (("bound by launches", [one for one in made if one[2]]), ("others", [one for one in made if not one[2]])):
            if some:
                worst = min(some, key=lambda one: one[1])
                mean = statistics.geometric_mean(one[1] for one in some)
                lines.append(row(f"`{ours}`", who, kind, len(some), f"{mean:.2f}x", f"`{worst[0]}`: {worst[1]:.2f}x"))
    if not lines:
        return []
    head = [row("", "against", "steps", "count", "geometric mean", "worst"), row(*["---"] * 6)]
    return ["## Against torch's own graphs", "", "Of steps that replay, where both were timed and neither computed something else. Bound by "
            f"launches: a replay takes less than {LAUNCH_BOUND:.0%} of eager's time.", "", *head, *lines, ""]


def compilings(rows):
    """What compile="auto" took."""
    told = [f"- `{one['case']}`: {text}" for one in rows for text in one["zoo"].get("compiled", ())]
    return ["## What `compile=\"auto\"` took", "", *told, ""] if told else []


def page(file):
    document = json.loads(file.read_text())
    rows = [one for result in document["results"] for one in result["cases"]]
    order = {case.name: i for i, case in enumerate(cases.CASES)}
    rows.sort(key=lambda one: order[one["case"]])
    static = [one for one in rows if one["zoo"]["kind"] == cases.STATIC]
    good = sum(is_good(one) for one in static)
    machine = document["machine"]
    where = file.resolve()
    link = f"[{where.name}](../../{where.relative_to(ROOT)})" if where.is_relative_to(ROOT) else where.name
    lines = [HEAD.format(
        file=link, machine=", ".join(machine[key] for key in ("device", "processor") if key in machine) + f", torch {machine['torch']}",
        count=len(rows), device=" and ".join(sorted({one["zoo"]["device"] for one in rows})),
        size=" and ".join(sorted({one["zoo"]["size"] for one in rows})), replayed=good, static=len(static),
        calls=Counter(one["zoo"].get("calls") for one in rows).most_common(1)[0][0],
        share=100 * good / max(1, len(static)), crashed=sum("crashed" in one["zoo"] for one in rows),
        wrong=sum(bool(differs(one)) and not one["zoo"].get("eager_differs_from_itself") for one in rows))]
    lines += [gains(rows), ""] if gains(rows) else []
    missing = [f"`{case.name}`" for case in cases.CASES if case.name not in {one["case"] for one in rows}]
    lines += [f"Of the zoo's {len(cases.CASES)} these were not run: {', '.join(missing)}.", ""] if missing else []
    for family in dict.fromkeys(one["zoo"]["family"] for one in rows):
        members = [one for one in rows if one["zoo"]["family"] == family]
        lines += [f"## {family}", "", *table(members), ""]
        lines += [f"- `{one['case']}`: {one['zoo']['source']}" for one in members] + [""]
    lines += [*comparison(rows), *lanes(rows), *compilings(rows)]
    lines += ["## What does not replay, and why", "", *misses(rows), ""]
    return "\n".join(lines)


def main(arguments):
    parser = argparse.ArgumentParser(description="Makes the zoo's page.")
    parser.add_argument("file", nargs="?", type=Path, default=RESULTS)
    parser.add_argument("--to", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    text = page(options.file)
    if options.to is None:
        print(text)
    elif options.check:
        if not options.to.exists() or options.to.read_text() != text:
            print(f"{options.to} is not what {options.file} makes: run bench/zoo/table.py", file=sys.stderr)
            return 1
    else:
        options.to.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
