"""Makes docs/guide/results.md, its pictures, docs/reference/missed.md and the table of the README from the committed results in
bench/results.

    results_doc.py            write the pages, the pictures and the table
    results_doc.py --check    fail if one of them is not what the results make
"""

import json
import sys
from dataclasses import dataclass
from html import escape

import benchmark_docs
from curve_picture import curve_picture
from generated_pages import ROOT, write_or_check

RESULTS = ROOT / "bench/results/h200"
PAIR = ROOT / "bench/results/h200x2"  # two GPUs of one machine
PAGE = ROOT / "docs/guide/results.md"
MISSED = ROOT / "docs/reference/missed.md"
README = ROOT / "README.md"
IMAGES = ROOT / "docs/images"
TABLE_BEGIN, TABLE_END = "<!-- figures -->\n", "<!-- end of figures -->\n"

HEAD = """# Results

`tools/results_doc.py` makes this page and its pictures from the JSON files in [bench/results/h200](../../bench/results/h200/README.md)
and, for two GPUs, [bench/results/h200x2](../../bench/results/h200x2/README.md), where all tables are. Machine: {machine}.{others}

Contenders of a figure ran in turn on one machine. Pianola's first showed eager's bits, or the compiled model's.
Bars are medians. Compare ratios, not machines. `make bench` runs them. [What was missed, and why](../reference/missed.md).
"""

MISSED_HEAD = """# Requirements that were missed

`tools/results_doc.py` makes this page from the JSON files of [the results](../guide/results.md). Each benchmark has requirements. Of
{count}, {missed} were missed:

| benchmark and case | requirement | measured | limit | why |
| --- | --- | ---: | ---: | --- |"""

# What a missed requirement is due to: (benchmark, begin of the requirement) -> why.
REASONS = {
    ("cuda/capture_time", "Graph::capture, trace on: at most"):
        "without the trace 1.38: a third of what is more is cudaMalloc, for cuBLAS's workspaces of the pool, a quarter watches the "
        "operations; 1.61 on another host",
    ("cuda/capture_time", "Graph::capture, trace off: at most"):
        "as above; 1.35 on another host",
    ("cuda/replay_host", "Graph::replay(): at most 0.5 us"):
        "the launch itself spreads by 0.7 to 13 us there; 0.07 to 0.34 us where it is steady",
    ("cuda/callable_host", "1024 parameters: at most"):
        "each parameter is looked at, 0.04 us each",
    ("cuda/full_iteration", "FullIteration, static inputs: at least 1x"):
        "the GPU is the limit on both sides",
    ("cuda/full_iteration", "FullIteration, static inputs: at most 1.01x"):
        "1.007 on another host",
    ("cuda/full_iteration", "FullIteration, static inputs: at most 3 us"):
        "a call looks at what its graph uses; 4.9 us on another host",
    ("cuda/python_islands", "@pianola.graphed, the read in pianola.eager: at most 5 us"):
        "Python ends the part; none in C++",
    ("cuda/python_islands", "@pianola.graphed, the read in pianola.eager: at most 1.02x"):
        "as above",
    ("cuda/python_islands", "a part beyond its own operations: at most 12 us"):
        "9.3 us in C++",
    ("cuda/python_islands", "@pianola.graphed, a decision by the value"):
        "12 us in Python",
    ("cuda/python_fp8", "delayed, @pianola.graphed: at most 1x"):
        "three casts more for each layer",
    ("cuda/python_fp8", "tensor, @pianola.graphed: at most 1x"):
        "six kernels more for each layer",
    ("cuda/python_fp8", "row, @pianola.graphed: at most 1x"):
        "nine kernels more for each layer",
    ("cuda/python_fp8", "delayed: at least 0.9 of the bound"):
        "the casts: of inputs, weights and gradients",
    ("cuda/python_fp8", "tensor: at least 0.9 of the bound"):
        "as above, with an amax before each",
    ("cuda/python_experts_ranks", "counted tokens: at least 0.7"):
        "the device waits while the host sends",
    ("cuda/python_layers", "pianola.graph_layers: at most 1.05x"):
        "within the spread; 1.09 and 1.01 in another run",
    ("cuda/python_graphed", "@pianola.graphed, whole step: at least 20x"):
        "24x on another host",
    ("cuda/python_layers", "pianola.graph_layers, optimizer.step graphed"):
        "the host runs Python between layers",
    ("cuda/python_audit", "audited, no source lines: at most"):
        "it watches Python too",
    ("cuda/python_decoding", "another position: at most"):
        "26 nodes are given their new place one by one, at 1.6 us each",
    ("cuda/python_optimizers", "AdamW, @pianola.graphed, whole step: at least 2x as fast as AdamW, eager Python"):
        "of the transformer; the GPU is the limit on both sides, and the host waits for it",
    ("cuda/python_first_replay", "capture and trials, us: at most 6 eager steps"):
        "of GPT-2",
    ("cuda/python_full_iteration", "pianola.FullIteration, static inputs: at least 1x"):
        "the GPU is the limit on both sides",
    ("cuda/python_guards", "arguments taken apart, and a look"):
        "a call looks at 1,700 places on the host",
    ("cuda/python_ranks", "the reduction adds at most"):
        "a scaling kernel per gradient",
    ("cuda/python_ranks", "@pianola.graphed, branches=4: at most 10 us above"):
        "guards, the input, the result",
    ("cuda/python_sharded", "@pianola.graphed, branches=4: at most"):
        "not looked into",
    ("cuda/scopes", "whole iteration, pianola::FullIteration: at least 1x"):
        "the GPU is the limit on both sides",
    ("cuda/strict_replay", "strict: at most"):
        "each tensor is looked at, 18 ns on this host, 11 ns on another",
}

GREY, ORANGE, LIGHT, BLUE, DARK = "#8a8f98", "#d9822b", "#9ec5ee", "#4c8fd6", "#1f5fa8"


@dataclass
class Figure:
    """Bars of some cases of one benchmark, a group per case."""

    name: str  # of the picture
    title: str
    text: str  # what it says
    file: str
    measure: str
    cases: dict[str, str]  # case -> what the group is called
    bars: dict[str, tuple[str, str]]  # contender -> what its bar is called, colour


FIGURES = [
    Figure("models", "A training step from Python",
           "The step of two models, eager, with the model graphed, and with the whole step graphed by `@pianola.graphed`. Small batches leave "
           "the GPU waiting for the host; a graph ends that.",
           "cuda_python_models.json", "time per step",
           {"GPT-2, 6 x 384, batch 8 x 128, dropout 0.1, Adam": "GPT-2, 6 layers of 384, batch 8 x 128",
            "ResNet-18, batch 16 x 3 x 64 x 64, SGD with momentum": "ResNet-18, batch 16 x 64 x 64"},
           {"eager Python": ("eager", GREY), "pianola.make_graphed_callables": ("make_graphed_callables", BLUE),
            "@pianola.graphed, whole step": ("@graphed, whole step", DARK)}),
    Figure("compile", "Beside torch.compile",
           "`torch.compile(mode=\"reduce-overhead\")` fuses kernels and uses CUDA graphs for the model; the optimizer stays outside. "
           "`@pianola.graphed` takes the whole step as it is. The first replay comes after {first}.",
           "cuda_python_graphed.json", "time per step",
           {"MLP 16 x 64, batch 32, Adam": "MLP, 16 layers of 64, batch 32",
            "transformer 8 x 256, batch 2 x 64, Adam": "transformer, 8 layers of 256, batch 2 x 64"},
           {"eager Python": ("eager", GREY), 'torch.compile(mode="reduce-overhead")': ("torch.compile", ORANGE),
            "pianola.make_graphed_callables": ("make_graphed_callables", BLUE),
            "@pianola.graphed, whole step": ("@graphed, whole step", DARK)}),
    Figure("parameters", "The host's time by the number of parameters",
           "Forward and backward of one callable. torch's gives autograd each gradient by itself; Pianola's graph adds them up.",
           "cuda_python_callables.json", "host time of forward and backward",
           {f"sum of parameters, gradients accumulated: {count} parameters": f"{count} parameters" for count in (8, 64, 256, 1024)},
           {"torch.cuda.make_graphed_callables": ("torch.cuda", ORANGE), "pianola.make_graphed_callables": ("pianola", DARK)}),
    Figure("random", "A replay with random numbers",
           "torch sets the generator's offset from the host before each replay. Pianola's graph advances it by itself, and costs what the "
           "bare `cudaGraphLaunch` costs.",
           "cuda_replay_host.json", "host time per call",
           {f"{count} nodes, random numbers": f"{count} nodes" for count in (10, 100, 1000)},
           {"at::cuda::CUDAGraph::replay()": ("torch", ORANGE), "Graph::replay()": ("Pianola", DARK),
            "cudaGraphLaunch": ("bare launch", GREY)}),
    Figure("iteration", "The whole iteration",
           "Four microbatches, clipping, gradient scaler, AdamW and a NaN check in one launch. With the optimizer inside, the host is "
           "free for {free} of each iteration of the transformer. `branches=4` runs independent kernels at once.",
           "cuda_python_full_iteration.json", "time per iteration",
           {"MLP 16 x 64, 4 microbatches of 32": "MLP, 16 layers of 64",
            "transformer 8 x 256, 4 microbatches of 2 x 64": "transformer, 8 layers of 256"},
           {"eager Python": ("eager", GREY), "torch.cuda.graph, optimizer outside": ("torch.cuda.graph", ORANGE),
            "pianola.FullIteration, static inputs": ("FullIteration", BLUE),
            "pianola.FullIteration, static inputs, branches = 4": ("FullIteration, branches=4", DARK)}),
    Figure("branches", "Branches",
           "One replay of a training step: captured by torch, and rebuilt on four lanes. [Branches](branches.md) says which steps gain.",
           "cuda_branches.json", "device time per replay, back to back",
           {"training step: MLP 16 x 64, batch 256, SGD": "MLP, 16 layers of 64",
            "training step: MLP 16 x 1024, batch 256, SGD": "MLP, 16 layers of 1024",
            "training step: transformer 8 x 256, batch 2 x 64, packed q k v, Adam": "transformer, 8 layers of 256",
            "inference: 6 inception blocks, 256 x 14 x 14, batch 1": "inception blocks, inference"},
           {"torch.cuda.graph": ("torch.cuda.graph", ORANGE), "branches = 4": ("branches = 4", DARK)}),
    Figure("compiled", "Compiled models in the graph of a step",
           "`@pianola.graphed` around the step of a compiled model; the bits are those of the compiled model.",
           "cuda_python_compiled.json", "time per step",
           {"MLP, 16 x 256, batch 32": "MLP, 16 x 256",
            "Llama, 8 x 512, batch 4 x 128, bfloat16": "Llama, 8 x 512",
            "resnet50, batch 8 x 3 x 224 x 224": "ResNet-50, batch 8"},
           {"torch.compile": ("compiled", GREY), "torch.compile, reduce-overhead": ("reduce-overhead", ORANGE),
            "@pianola.graphed": ("@graphed", BLUE), "@pianola.graphed, torch.compile": ("@graphed, compiled", DARK),
            "@pianola.graphed, torch.compile, branches=4": ("in branches", BLUE)}),
]


def document(file):
    return json.loads((RESULTS / file).read_text())


def case_of(file, case, measure):
    """{contender: median}, in microseconds or what the unit is."""
    found = [one for result in document(file)["results"] for one in result["cases"]
             if one["case"] == case and one["measure"].partition(",")[0] == measure.partition(",")[0]]
    if len(found) != 1:
        raise SystemExit(f"{file} has {len(found)} cases '{case}' that measure '{measure}'")
    return {contender["contender"]: contender["median"] for contender in found[0]["contenders"]}


def number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def picture(figure):
    """Horizontal bars, a group per case. Dark and light pages both show it on white."""
    left, bar, width, right = 190, 17, 470, 80
    values = {case: case_of(figure.file, case, figure.measure) for case in figure.cases}
    longest = max(values[case][contender] for case in figure.cases for contender in figure.bars)
    y, parts = 34, []
    for case, words in figure.cases.items():
        parts.append(f'<text x="12" y="{y + 12}" font-weight="bold">{escape(words)}</text>')
        y += 20
        for contender, (name, colour) in figure.bars.items():
            value = values[case][contender]
            length = max(1.0, width * value / longest)
            parts.append(f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{escape(name)}</text>')
            parts.append(f'<rect x="{left}" y="{y + 2}" width="{length:.1f}" height="{bar - 4}" fill="{colour}"/>')
            parts.append(f'<text x="{left + length + 6:.1f}" y="{y + 13}">{number(value)} us</text>')
            y += bar
        y += 10
    size = f'width="{left + width + right}" height="{y + 4}"'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {left + width + right} {y + 4}" '
                      'font-family="sans-serif" font-size="12" fill="#1f2328">',
                      '<rect width="100%" height="100%" rx="6" fill="#ffffff"/>',
                      f'<text x="12" y="20" font-size="13">{escape(figure.title)}: {escape(figure.measure)} (shorter is better)</text>',
                      *parts, "</svg>"]) + "\n"


def table(figure):
    lines = ["| " + " | ".join(["", *(name for name, _ in figure.bars.values())]) + " |",
             "| --- |" + " ---: |" * len(figure.bars)]
    for case, words in figure.cases.items():
        values = case_of(figure.file, case, figure.measure)
        lines.append(f"| {words} | " + " | ".join(f"{number(values[contender])} us" for contender in figure.bars) + " |")
    return "\n".join(lines)


def facts():
    """What the texts of figures fill in."""
    first = case_of("cuda_python_graphed.json", "transformer 8 x 256, batch 2 x 64, Adam",
                    "first call to the end of the first that is replayed")
    compiled, graphed = first['torch.compile(mode="reduce-overhead")'], first["@pianola.graphed, whole step"]
    transformer = "transformer 8 x 256, 4 microbatches of 2 x 64"
    host = case_of("cuda_python_full_iteration.json", transformer, "host time per iteration")["pianola.FullIteration, static inputs"]
    whole = case_of("cuda_python_full_iteration.json", transformer, "time per iteration")["pianola.FullIteration, static inputs"]
    return {"first": f"{compiled / 1000:.1f} s with torch.compile and {graphed:.0f} ms with `@pianola.graphed` (the transformer)",
            "free": f"{100 * (1 - host / whole):.0f} %"}


def figure_text(count, figure):
    command = document(figure.file)["command"].partition(" --")[0]
    text = figure.text.format(**facts())
    return (f"## {count}. {figure.title}\n\n{text}\n\n![{figure.title}](../images/results_{figure.name}.svg)\n\n{table(figure)}\n\n"
            f"{figure.measure[0].upper() + figure.measure[1:]}; `{command}`.\n")


def missed_text():
    """A row for each requirement of a benchmark, whichever of its cases missed it."""
    missed, count = {}, 0
    for file in sorted([*RESULTS.glob("*.json"), *PAIR.glob("*.json")], key=lambda file: file.name):
        for result in json.loads(file.read_text())["results"]:
            for case in result["cases"]:
                for wanted in case["requirements"]:
                    count += 1
                    if not wanted["met"]:
                        missed.setdefault((result["benchmark"], wanted["requirement"]), []).append((case["case"], wanted))
    rows = [missed_row(benchmark, cases) for (benchmark, _), cases in missed.items()]
    return MISSED_HEAD.format(count=count, missed=sum(map(len, missed.values()))) + "\n" + "\n".join(rows)


def missed_row(benchmark, cases):
    """`cases`: (case, requirement) of one requirement."""
    (case, wanted), others = cases[0], len(cases) - 1
    why = [words for (name, begin), words in REASONS.items() if name == benchmark and wanted["requirement"].startswith(begin)]
    if len(why) != 1:
        raise SystemExit(f"REASONS has {len(why)} reasons why {benchmark}, '{case}' missed '{wanted['requirement']}'; give it one")
    also = f", and {others} other{'s' if others > 1 else ''}" if others else ""
    measured, limit = (from_to([one[kind] for _, one in cases], form) for kind, form in (("measured", "{:.3f}"), ("limit", "{}")))
    return f"| `{benchmark}`: {case}{also} | {wanted['requirement']} | {measured} | {limit} | {why[0]} |"


def from_to(values, form):
    """"3.1", or "3.1 to 4.5"."""
    return " to ".join(dict.fromkeys(form.format(one) for one in (min(values), max(values))))


def machine_text():
    machine = document("cuda_python_models.json")["machine"]
    return (f"{machine['device']}, {machine['processor']}, {machine['cores']} cores; torch {machine['torch']}, CUDA {machine['cuda']}, "
            f"driver {machine['driver']}, Python {machine['python']}, Pianola {machine['pianola']}")


def others_text():
    documents = [json.loads(file.read_text()) for file in sorted(RESULTS.glob("cuda_*.json"))]
    return benchmark_docs.others_text(documents, document("cuda_python_models.json")["machine"])


def page():
    parts = [HEAD.format(machine=machine_text(), others=others_text())] + [figure_text(*each) for each in enumerate(FIGURES, 1)]
    return "\n".join(parts) + "\n"


def readme_table():
    """Times per step, and what of them the host is busy."""
    machine = document("cuda_python_graphed.json")["machine"]
    lines = [f"One training step from Python on an {machine['device']} (torch {machine['torch']}, CUDA {machine['cuda']}; "
             "`bench/python/main.py cuda/python_graphed` and `cuda/python_models`), in brackets the host's share:", "",
             "| | eager | torch.compile, reduce-overhead | `make_graphed_callables` | `@pianola.graphed` |", "|---|---:|---:|---:|---:|"]
    contenders = ("eager Python", 'torch.compile(mode="reduce-overhead")', "pianola.make_graphed_callables",
                  "@pianola.graphed, whole step")
    rows = [(FIGURES[1].file, case, words) for case, words in FIGURES[1].cases.items()]
    rows += [(FIGURES[0].file, case, words) for case, words in FIGURES[0].cases.items()]
    for file, case, words in rows:
        whole, host = case_of(file, case, "time per step"), case_of(file, case, "host time per step")
        cells = [f"{number(whole[one])} ({number(host[one])}) us" if one in whole else "" for one in contenders]
        lines.append(f"| {words} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def losses_picture():
    """Of docs/guide/fp8.md."""
    found = document("checks/fp8_losses.json")
    return curve_picture("Loss of a character GPT", found["losses"], found["steps"], (GREY, ORANGE, BLUE, DARK))


def pages():
    """{file: its text}"""
    before, _, rest = README.read_text().partition(TABLE_BEGIN)
    after = rest.partition(TABLE_END)[2]
    made = {IMAGES / "fp8_loss.svg": losses_picture(), PAGE: page(), MISSED: missed_text() + "\n", README: before + TABLE_BEGIN + readme_table() + TABLE_END + after}
    return made | {IMAGES / f"results_{figure.name}.svg": picture(figure) for figure in FIGURES}


if __name__ == "__main__":
    sys.exit(write_or_check(__doc__, pages))
