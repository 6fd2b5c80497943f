"""Makes docs/reference/hazards: the hazard rules, a wrong and a right program for each, and the checklist that they answer; and
docs/reference/errors.md: what torch, CUDA and Pianola say, the rules that explain it, and the cure.

    hazards_doc.py            write the pages
    hazards_doc.py --check    fail if a page is not what rules, programs and recorded results make

The rules are those of pianola/core/hazard_table.cpp, the programs those of tests/hazards/programs/, and what the audit says
of them is recorded in tests/hazards/results/cpu.json and cuda.json, which `tests/hazards/run.py --json` writes.
"""

import json
import re
import sys

from generated_pages import ROOT, write_or_check

FOLDER = ROOT / "docs/reference/hazards"
ERRORS_PAGE = ROOT / "docs/reference/errors.md"
TO_ROOT = "../../.."  # from a page of FOLDER
RESULTS = ROOT / "tests/hazards/results"
sys.path.insert(0, str(ROOT / "tests/hazards"))

import corpus  # noqa: E402

HEAD = """# Hazards

A hazard is code that breaks a capture or makes replays wrong. Each has a rule with an id that never changes. `pianola.audit` reports by
these rules before a capture, a failed capture and a refused replay name theirs in brackets (`[PG101]`), and `pianola.verify` shows
wrong numbers whatever their cause. [Errors](../errors.md) goes from a message to its rule.

`tools/hazards_doc.py` makes these pages from the rules of the library (`pianola::hazard_rules()`) and from the programs of
[tests/hazards/programs](../../../tests/hazards/programs). Tests audit each program: the audit has to report each marked line by its
rule, and nothing else.
"""

ERRORS_HEAD = """# Errors

`tools/hazards_doc.py` makes this page from the rules of the library.

Every error of Pianola says what happened, where, and how to fix it. `[PG101]` at the end of the first line is the rule:

```text
aten::item returns a value of a tensor to the host, which is not allowed during capture [PG101]
  where: operation 2 of the step (aten::_local_scalar_dense inside aten::item), clipped at script.py:3
  fix:   keep the value on the device (torch.where, masked arithmetic, fixed shapes), or leave this part out of the capture
```

In Python `error.what`, `error.where`, `error.fix` and `error.rule` are these parts; in C++ `error.diagnosis()` has them. An exception that
the captured code itself throws comes out unchanged, and the capture is undone. A torch error that the capture caused becomes a
`CaptureError`, and the torch error is its `__cause__`.

| class (Python: a `RuntimeError`) | when |
| --- | --- |
| `Error` | base of all |
| `UsageError` | the caller broke a documented rule |
| `CaptureError` | a capture failed; nothing of it is kept |
| `OutOfMemoryError` | a `CaptureError` and a `torch.OutOfMemoryError`: the device ran out of memory during a capture |
| `ReplayError` | a replay was refused, or could not be launched |
| `GuardError` | a call differs from what was captured |
| `ScheduleError` | a pipeline schedule is malformed, or was not followed |
| `NonFiniteError` | a `FiniteWatch` saw NaN or infinity |
| `ConfigError` | options contradict each other |
| `UnsupportedError` | the request is valid, but this build or backend cannot serve it |
| `CommunicationError` | a replay communicated with other ranks, and one of them did something else, or has ended; nothing is tried again |
| `DeviceError` | no such device, no driver, or a CUDA call failed outside a capture |

[Refusals](refusals.md) lists what graphed callables refuse, and the reasons why `@pianola.graphed` runs a call eagerly.

## What torch and CUDA say

`torch.cuda.graph` reports these messages, mostly without a line. Run the same step under `pianola.audit`, or capture it with Pianola:
the report names the operation and the line.
"""

GROUPS = {
    1: ("Host reads and waiting", "host_reads"),
    2: ("Memory of the host", "host_memory"),
    3: ("Numbers", "numbers"),
    4: ("Addresses", "addresses"),
    5: ("Control flow and shapes", "flow"),
    6: ("Random numbers", "random"),
    7: ("Streams and threads", "streams"),
    8: ("Effects on the host", "effects"),
    9: ("Memory and results", "results"),
    10: ("Optimizers, modules and compilers", "training"),
    11: ("Distributed training", "distributed"),
    12: ("The capture itself", "whole"),
}

# Which program shows a rule on the page, where several do.
SHOWN = {
    "PG101": "host_reads/loss_item",
    "PG102": "host_reads/early_exit",
    "PG103": "host_reads/numpy_metric",
    "PG105": "host_reads/expert_nonzero",
    "PG106": "host_reads/score_filter",
    "PG108": "host_reads/synchronize",
    "PG110": "host_reads/library_wait",
    "PG202": "host_memory/batch_upload",
    "PG301": "numbers/temperature",
    "PG303": "numbers/target_tensor",
    "PG305": "numbers/clock",
    "PG401": "addresses/replaced_batch",
    "PG402": "addresses/parameter_data",
    "PG403": "addresses/gradients_set_to_none",
    "PG501": "flow/epoch_branch",
    "PG502": "flow/last_batch",
    "PG505": "flow/optional_result",
    "PG701": "streams/default_stream",
    "PG801": "effects/loss_history",
    "PG802": "effects/rebound_cache",
    "PG803": "effects/step_counter",
    "PG901": "results/kept_result",
    "PG902": "results/input_in_place",
    "PG1001": "training/adam",
    "PG1004": "training/module_hook",
    "PG1005": "training/cold_compile",
}

# Wrong programs whose repair another program shows.
REPAIRED_BY = {
    "streams/library_stream": "host_reads/library_wait",
    "streams/worker_thread": "streams/default_stream",
    "distributed/ddp_default_stream": "distributed/ddp_warmup",
}

# Tests, besides the programs, that show a rule.
OTHER_TESTS = {
    "PG101": ["pianola/graph/host_read_test.cpp"],
    "PG204": ["pianola/graph/refusal_test.cpp"],
    "PG302": ["pianola/audit/cuda/argument_changes_test.cpp"],
    "PG401": ["tests/hazards/other_rules_test.py", "pianola/graph/check_mode_test.cpp"],
    "PG402": ["tests/hazards/other_rules_test.py", "pianola/graph/check_mode_test.cpp"],
    "PG404": ["tests/hazards/other_rules_test.py", "pianola/graph/check_mode_test.cpp"],
    "PG601": ["pianola/graph/random_test.cpp"],
    "PG602": ["pianola/graph/random_test.cpp"],
    "PG702": ["pianola/graph/failure_test.cpp"],
    "PG704": ["pianola/graph/failure_test.cpp"],
    "PG707": ["pianola/graph/thread_test.cpp"],
    "PG901": ["pianola/callable/outputs_test.cpp"],
    "PG904": ["pianola/callable/refusal_test.cpp"],
    "PG705": ["pianola/graph/cuda/shared_stream_test.cpp"],
    "PG707": ["pianola/graph/thread_test.cpp"],
    "PG907": ["tests/hazards/other_rules_test.py", "pianola/callable/slots_test.cpp"],
    "PG908": ["tests/hazards/other_rules_test.py", "pianola/audit/memory_test.cpp"],
    "PG909": ["tests/hazards/other_rules_test.py", "pianola/graph/pool_test.cpp"],
    "PG1004": ["pianola/callable/module_view_test.cpp"],
    "PG1006": ["tests/hazards/other_rules_test.py"],
    "PG1007": ["pianola/callable/refusal_test.cpp"],
    "PG1009": ["tests/hazards/other_rules_test.py"],
    "PG1102": ["tests/hazards/other_rules_test.py"],
    "PG1105": ["tests/hazards/other_rules_test.py", "pianola/callable/pipeline_test.cpp"],
    "PG1107": ["python/tests/ranks/ranks_agree_test.py", "pianola/distributed/order_proof_test.cpp"],
    "PG1205": ["tests/hazards/other_rules_test.py"],
}

# Refusals of a replay or of a graphed callable's call.
AT_REPLAY = {"PG401", "PG402", "PG403", "PG404", "PG501", "PG901", "PG907", "PG909", "PG1007", "PG1105"}

# What is usually asked of code before it is captured -> rules.
CHECKLIST = [
    ("The host does not wait", [
        ("No value of a tensor is read: `item()`, `float()`, `tolist()`", ["PG101"]),
        ("No tensor is copied to the host: `cpu()`, `numpy()`", ["PG103"]),
        ("No tensor is printed or formatted", ["PG104"]),
        ("No condition on a tensor: `torch.where` chooses instead", ["PG102"]),
        ("No wait for a device, a stream or an event", ["PG108", "PG110"]),
        ("No question to a stream or an event, also not by a library or a watchdog", ["PG109", "PG110", "PG1101"]),
        ("Losses and gradients are not checked for NaN on the host", ["PG112", "PG1008"]),
        ("Clipping does not read the norm", ["PG1003"]),
        ("Mixed precision skips updates on the device", ["PG1002"]),
        ("What reads a value only in backward is known", ["PG111"]),
    ]),
    ("All work is the device's", [
        ("Nothing is computed on the CPU for the step", ["PG201", "PG203"]),
        ("Nothing is copied from memory that is not pinned, and no constant is made in the step", ["PG202", "PG303"]),
        ("No pinned memory is allocated in the step", ["PG205"]),
        ("A pinned buffer is not written while a copy may still read it", ["PG206"]),
        ("Lists, counters and attributes of the host are not changed by the step", ["PG801", "PG802", "PG803"]),
        ("Files, logs and clocks stay outside", ["PG804", "PG305"]),
        ("One device per graph", ["PG204"]),
    ]),
    ("Everything stays the same", [
        ("The same operations each time: no branch on an epoch, a counter or a random number of the host",
         ["PG501", "PG304", "PG604"]),
        ("The same shapes: padding, buckets, no last smaller batch", ["PG502"]),
        ("No shape that depends on values: `nonzero`, masks as indices, `unique`, repeats", ["PG105", "PG106", "PG107"]),
        ("The same dtypes and strides", ["PG503", "PG504"]),
        ("The same results", ["PG505"]),
        ("Numbers that change (learning rate, temperature, position) are tensors that are filled", ["PG301", "PG302", "PG303"]),
        ("Inputs are allocated once and filled by `copy_()`", ["PG401", "PG405"]),
        ("Tensors from outside are kept alive", ["PG404"]),
        ("Parameters keep their memory", ["PG402"]),
        ("Gradients keep their memory, or are dropped inside the step", ["PG403"]),
        ("State that a step hands to the next is written in place (hidden states, caches)", ["PG802"]),
    ]),
    ("Random numbers", [
        ("Generators besides the default one are named to the capture", ["PG601"]),
        ("No seeding and no reading or setting of states inside, unless made for graphs", ["PG602", "PG603"]),
        ("Checkpointing leaves generators alone (`preserve_rng_state=False`), or is captured with its backward", ["PG605"]),
        ("Random numbers are drawn on the device", ["PG604", "PG606"]),
    ]),
    ("Streams and threads", [
        ("Libraries and extensions use the current stream, not the default one", ["PG701"]),
        ("A side stream first waits for the step's stream", ["PG703"]),
        ("The step's stream waits for side streams at its end", ["PG702"]),
        ("No wait for an event that was recorded outside", ["PG704"]),
        ("Gradients are accumulated on the stream that is captured", ["PG705"]),
        ("`record_stream()` holds memory back while a capture runs", ["PG706"]),
        ("Other threads (loaders that pin memory, watchdogs) do not call CUDA in a way that breaks the capture", ["PG707"]),
    ]),
    ("Memory and results", [
        ("Results are cloned before the next replay where they are kept", ["PG901", "PG903"]),
        ("The step does not write into its inputs", ["PG902"]),
        ("Graphs that share a pool do not read what another one has overwritten", ["PG909"]),
        ("Graphs share a pool where memory is short, and eager tensors are dropped first", ["PG908"]),
        ("A region of autocast begins and ends inside the step, or has no cache", ["PG906"]),
    ]),
    ("Callables and training", [
        ("Optimizers are capturable: step counts and learning rates on the device", ["PG1001"]),
        ("Hooks are registered after a module was graphed", ["PG1004"]),
        ("Buffers need no gradient; all parameters, and inputs that require grad, get one", ["PG904", "PG905"]),
        ("No gradients of gradients through a graphed callable", ["PG1007"]),
        ("A callable's backward runs before its next forward, or it has more slots", ["PG907"]),
        ("Pipelines call in the order of their schedule", ["PG1105"]),
        ("torch.compile compiles nothing in the step", ["PG1005"]),
        ("Libraries were used before: warm-up of three runs, eleven under DistributedDataParallel", ["PG1006", "PG1104"]),
        ("Ranks communicate outside", ["PG1106"]),
        ("All ranks communicate in one order", ["PG1107"]),
        ("FP8 modules run in their autocast at replay, too", ["PG1009"]),
    ]),
    ("Distributed training", [
        ("Asynchronous error handling of NCCL is off", ["PG1101"]),
        ("NCCL is 2.9.6 or newer", ["PG1102"]),
        ("DistributedDataParallel is made in the context of a side stream", ["PG1103"]),
    ]),
    ("Whether it is worth it", [
        ("The step runs eagerly, and has work for the device", ["PG1202", "PG1201"]),
        ("Tensors are dense, and operations can be repeated", ["PG1203"]),
        ("The device waits for the host some of the time", ["PG1204"]),
        ("Replays are compared with eager runs", ["PG1205"]),
    ]),
]

# What torch and CUDA say -> what it means, rules.
MESSAGES = [
    ("operation not permitted when stream is capturing", "CUDA error 900: the step waits, copies or allocates in a forbidden way",
     ["PG101", "PG103", "PG108", "PG110", "PG202", "PG205"]),
    ("operation failed due to a previous error during capture",
     "CUDA error 901: something else broke the capture, often another thread", ["PG707", "PG1101"]),
    ("capturing stream has unjoined work", "CUDA error 904: a side stream did not come back", ["PG702"]),
    ("dependency created on uncaptured work in another stream", "CUDA error 905: a wait for work outside the capture", ["PG704"]),
    ("operation would make the legacy stream depend on a capturing blocking stream",
     "CUDA error 906: the default stream takes part, often through gradients", ["PG701", "PG705", "PG1103"]),
    ("an illegal memory access was encountered", "at a replay: a tensor that the graph reads was freed or replaced",
     ["PG401", "PG404", "PG405"]),
    ("Offset increment outside graph capture encountered unexpectedly", "a generator that the capture was not told of",
     ["PG601", "PG602", "PG603"]),
    ("CUDA out of memory", "with several graphs", ["PG908"]),
]

# What people see without a message -> rules.
ERRORS = [
    ("Wrong numbers: something dynamic was frozen", ["PG301", "PG303", "PG401", "PG501", "PG802", "PG803"]),
    ("Wrong numbers: results read after the next replay", ["PG901", "PG903"]),
    ("Wrong numbers: a pinned buffer was filled too early", ["PG206"]),
    ("Wrong numbers: graphs of one pool in another order, or at the same time", ["PG909"]),
    ("Wrong numbers: work on a stream that was not captured", ["PG701", "PG703"]),
    ("Wrong numbers: addresses that were gathered in an array on the host", ["PG302", "PG405"]),
    ("Wrong numbers: code that asks whether it is captured, and does something else then", ["PG501", "PG1205"]),
    ("Hooks of modules or gradients do not run", ["PG1004", "PG1103"]),
    ("The same random numbers in each replay", ["PG601", "PG602", "PG603"]),
    ("Memory grows from step to step", ["PG706", "PG901"]),
    ("No speed-up", ["PG1204"]),
    ("FP8 scales go astray", ["PG1009"]),
    ("A pipeline's replays do not match its schedule", ["PG1105"]),
    ("A full-iteration capture fails at a NaN check or a synchronisation", ["PG112", "PG108"]),
    ("DistributedDataParallel cannot be captured", ["PG1101", "PG1102", "PG1103", "PG1104", "PG1106"]),
    ("Autocast's cached weights are freed or stale", ["PG906"]),
    ("A first call inside the capture: a library's handle, a compiler", ["PG1005", "PG1006"]),
]


class Results:
    """What `run.py --json` recorded, by device."""

    def __init__(self):
        self.by_device = {}
        for device in ("cpu", "cuda"):
            path = RESULTS / f"{device}.json"
            if path.exists():
                self.by_device[device] = json.loads(path.read_text())

    def message(self, program):
        """(device, text) of what the audit said; None if that is not recorded."""
        for device, recorded in self.by_device.items():
            for result in recorded["programs"]:
                if result["program"] == program.name and "text" in result:
                    return device, result["text"]
        return None

    def table(self):
        lines = ["| device | hazardous programs | clean programs | hazards | found | missed | wrong line | false alarms |",
                 "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
        for device, recorded in self.by_device.items():
            totals = recorded["totals"]
            keys = ("hazardous_programs", "clean_programs", "hazards", "found", "missed", "wrong_line", "false_alarms")
            name = "the tape (CPU)" if device == "cpu" else recorded["device_name"]
            lines.append(f"| {name} | " + " | ".join(str(totals[key]) for key in keys) + " |")
        return "\n".join(lines) if self.by_device else ""


def shown_on(program):
    """Devices on which the audit finds what is marked."""
    there = [device for device in ("cpu", "cuda") if device == "cuda" or not program.cuda_only]
    return [device for device in there if (program.name, device) not in corpus.KNOWN_MISSES]


def programs_by_rule(programs):
    """{rule: [program]}, of hazards that have to be found; first those of the rule alone, and of its group."""
    found = {}
    for program in programs:
        required = [e for device in shown_on(program) for e in program.expected(device) if not e.optional]
        for rule in sorted({rule for expectation in required for rule in expectation.rules}):
            others = sum(rule not in e.rules for e in required) + sum(len(e.rules) - 1 for e in required if rule in e.rules)
            rank = (others, program.group != GROUPS[group_number(rule)][1], program.name)
            found.setdefault(rule, []).append((rank, program))
    return {rule: [program for _, program in sorted(ranked, key=lambda each: each[0])] for rule, ranked in found.items()}


def shown_for(rule, found, by_name):
    """(wrong program, right program or None); None where the corpus has none."""
    wanted = SHOWN.get(rule)
    if wanted is None:
        group = GROUPS[group_number(rule)][1]
        own = [program for program in found.get(rule, []) if program.group == group] or found.get(rule, [])
        if not own:
            return None
        has_right = [program for program in own if program.name.replace("_wrong", "_right") in by_name]
        wanted = (has_right or own)[0].name.removesuffix("_wrong")
    right = by_name.get(f"{wanted}_right") or by_name.get(REPAIRED_BY.get(wanted, "") + "_right")
    return by_name[f"{wanted}_wrong"], right


def group_number(rule):
    return int(rule.removeprefix("PG")) // 100


def code_of(program):
    """Without docstring and flags of the corpus."""
    text = re.sub(r'^""".*?"""\n', "", program.source, count=1, flags=re.DOTALL)
    text = re.sub(r"^(CUDA_ONLY|DEVICES) = .*\n\n*", "", text, flags=re.MULTILINE)
    return re.sub(r"\n{4,}", "\n\n\n", text).strip("\n")


def link(program):
    return f"[{program.name.split('/')[1]}]({TO_ROOT}/{program.path.relative_to(ROOT).as_posix()})"


def test_link(test):
    return f"[{test}]({TO_ROOT}/{test})"


def rule_link(rule, folder=""):
    """To its section, from a page of the folder of hazards or from one that says where that is."""
    return f"[{rule}]({folder}{GROUPS[group_number(rule)][1]}.md#{rule.lower()})"


def capture_rules():
    """Those that the code of captures and callables names."""
    found = set()
    for room in ("trace", "distributed", "graph", "callable"):
        for path in (ROOT / "pianola" / room).rglob("*.cpp"):
            if not path.name.endswith("_test.cpp"):
                found |= set(re.findall(r'"(PG\d+)"', path.read_text()))
    return found


def contents(rules, found):
    captured = capture_rules()
    lines = ["| rule | kind | severity | what | found by | CUDA only |", "| --- | --- | --- | --- | --- | --- |"]
    for rule in rules.values():
        by = ["audit"] if rule.id in found or rule.id in ("PG302", "PG908", "PG1009", "PG1102") else []
        by += ["capture"] if rule.id in captured - AT_REPLAY or rule.id in ("PG602", "PG702") else []
        by += ["replay"] if rule.id in AT_REPLAY else []
        by += ["verify"] if rule.severity == "wrong numbers" else []
        lines.append(f"| {rule_link(rule.id)} | {rule.kind} | {rule.severity} | {rule.title} | {', '.join(by)} | "
                     f"{'yes' if rule.cuda_only else ''} |")
    return "\n".join(lines)


def section(rule, found, by_name, results):
    lines = [f'<a id="{rule.id.lower()}"></a>', f"## {rule.id} {rule.kind}: {rule.title}", ""]
    lines += [f"{sentence(rule.severity)} {sentence(rule.why)}", "", f"**What to do:** {sentence(rule.fix)}", ""]
    pair = shown_for(rule.id, found, by_name)
    if pair:
        lines += program_lines("Wrong", pair[0]) + message_lines(rule, pair[0], results)
        lines += program_lines("Right", pair[1]) if pair[1] else []
    if not pair:
        lines += ["Shown by " + ", ".join(test_link(test) for test in OTHER_TESTS[rule.id]) + ".", ""]
    return "\n".join(lines)


def sentence(text):
    return text[0].upper() + text[1:].rstrip(".") + "."


def program_lines(word, program):
    return [f"**{word}** ({link(program)}): {program.doc}", "", "```python", code_of(program), "```", ""]


def message_lines(rule, program, results):
    recorded = results.message(program)
    if recorded is None:
        return []
    device, text = recorded
    where = "the audit says" if device == "cpu" else "the audit says on CUDA"
    return [f"Of this {where}:", "", "```text", text.rstrip(), "```", ""]


def shown_by(rules, found):
    """Programs and tests of some rules, one or two of each rule."""
    cells = []
    for rule in rules:
        wrong = [link(program) for program in found.get(rule, []) if program.name.endswith("_wrong")][:2]
        cells += [each for each in wrong or [test_link(test) for test in OTHER_TESTS.get(rule, [])] if each not in cells]
    return ", ".join(cells)


def mapping(rows, head, found):
    lines = [f"| {head} | rules | shown by |", "| --- | --- | --- |"]
    for words, rules in rows:
        lines.append(f"| {words} | {', '.join(map(rule_link, rules))} | {shown_by(rules, found)} |")
    return "\n".join(lines)


def cures(listed, rules):
    """Each rule with what to do about it."""
    return "<br>".join(f"{rule_link(rule, 'hazards/')} {rules[rule].kind}: {rules[rule].fix}" for rule in listed)


def index(rules, programs, found, results):
    clean = sum(program.is_clean for program in programs)
    parts = [HEAD, f"The corpus has {len(programs) - clean} hazardous and {clean} clean programs.\n"]
    parts += [f"Results of the audit on all of them:\n\n{results.table()}\n"] if results.by_device else []
    parts.append("## Groups\n\n" + "\n".join(f"- [{title}]({name}.md)" for title, name in GROUPS.values()) + "\n")
    parts.append(f"## Rules\n\n{contents(rules, found)}\n")
    parts.append("## Checklist\n\nWhat to look for in code before it is captured, and the rules that find it.\n")
    parts += [f"### {title}\n\n{mapping(rows, 'item', found)}\n" for title, rows in CHECKLIST]
    return parts


def errors_page(rules):
    lines = ["| message | meaning | rule: cure |", "| --- | --- | --- |"]
    lines += [f"| `{message}` | {meaning} | {cures(listed, rules)} |" for message, meaning, listed in MESSAGES]
    seen = ["| seen | rule: cure |", "| --- | --- |"] + [f"| {words} | {cures(listed, rules)} |" for words, listed in ERRORS]
    return [ERRORS_HEAD, "\n".join(lines) + "\n", "## What you see without a message\n", "\n".join(seen)]


def pages():
    """{page: its text}"""
    rules, programs, results = corpus.hazard_rules(), corpus.programs(), Results()
    by_name = {program.name: program for program in programs}
    found = programs_by_rule(programs)
    made = {FOLDER / "index.md": index(rules, programs, found, results), ERRORS_PAGE: errors_page(rules)}
    for number, (title, name) in GROUPS.items():
        head = f"# Hazards: {title[0].lower() + title[1:]}\n\nBack to [all rules](index.md). `tools/hazards_doc.py` makes this page.\n"
        made[FOLDER / f"{name}.md"] = [head] + [
            section(rule, found, by_name, results) for rule in rules.values() if group_number(rule.id) == number]
    return {page: "\n".join(parts).rstrip("\n") + "\n" for page, parts in made.items()}


def problems():
    """Rules that nothing shows, and names of rules, programs and tests that are not there."""
    rules, programs = corpus.hazard_rules(), corpus.programs()
    names, found = {program.name for program in programs}, programs_by_rule(programs)
    for rule in rules:
        if rule not in found and rule not in OTHER_TESTS:
            yield f"{rule} is shown by no program and no test"
    listed = [rule for _, rows in CHECKLIST for _, some in rows for rule in some]
    listed += [rule for *_, some in MESSAGES + ERRORS for rule in some] + [*found, *OTHER_TESTS, *SHOWN, *AT_REPLAY]
    yield from (f"there is no rule {rule}" for rule in sorted(set(listed) - set(rules)))
    yield from (f"no item of the checklist and no error has rule {rule}" for rule in sorted(set(rules) - set(listed)))
    yield from (f"there is no program {name}" for name in SHOWN.values() if f"{name}_wrong" not in names)
    yield from (f"there is no {test}" for tests in OTHER_TESTS.values() for test in tests if not (ROOT / test).exists())


def main():
    found = sorted(problems())
    for problem in found:
        print(problem, file=sys.stderr)
    return write_or_check(__doc__, pages) or (1 if found else 0)


if __name__ == "__main__":
    sys.exit(main())
