"""Audits the programs of the corpus, and says what was found, missed, and found where nothing is.

    run.py [--device cpu|cuda] [--json FILE] [NAME...]     NAME: a part of a program's name ("numbers/", "adam")
    run.py --eager                                         only runs the steps, without Pianola
    run.py --isolate                                       each program in a process of its own
    run.py --text NAME                                     also prints the reports

Exit code 1: something was missed, or found where nothing is.
"""

import argparse
import collections
import json
import platform
import re
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch

import corpus


def versions():
    import pianola

    return {
        "pianola": pianola.__version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
    }


def device_name(device):
    return torch.cuda.get_device_name(0) if device == "cuda" else platform.processor() or platform.machine()


def told(finding, program):
    """A finding, as JSON has it."""
    keys = ("rule", "kind", "severity", "file", "line", "op", "module", "what", "evidence")
    fields = {key: getattr(finding, key) if key == "line" else str(getattr(finding, key)) for key in keys}
    return {"finding": fields, "words": corpus.in_words(finding, program)}


def repeatable(text, program):
    """Without what another run would say otherwise: folders and addresses."""
    text = text.replace(str(program.path), program.path.name).replace(str(corpus.ROOT), "")
    return re.sub(r"0x[0-9a-f]{6,}", "0x…", text)


def result_of(program, device, print_text):
    """What became of one program, as JSON has it."""
    expected = [str(expectation) for expectation in program.expected(device) if not expectation.optional]
    result = {"program": program.name, "clean": program.is_clean, "expected": expected}
    begin = time.perf_counter()
    try:
        report, verdict = corpus.audited(program, device)
    except Exception:
        result["error"] = traceback.format_exc()
        return result
    result["seconds"] = round(time.perf_counter() - begin, 3)
    if print_text:
        print(report.to_text())
    if report.findings:
        result["text"] = repeatable(report.to_text(), program)
    result["found"] = [{"rule": rule, "expected": str(e)} for rule, e in verdict.found]
    result["missed"] = [{"rules": list(e.rules), "expected": str(e)} for e in verdict.missed]
    result["wrong_line"] = [{**told(finding, program), "expected": str(e)} for finding, e in verdict.wrong_line]
    result["false_alarms"] = [told(finding, program) for finding in verdict.false_alarms]
    return result


def isolated_result(program, device):
    """The same, of a process of its own."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, __file__, "--device", device, "--json", file.name, "--exact", program.name]
        ran = subprocess.run(command, capture_output=True, text=True)
        try:
            return json.loads(Path(file.name).read_text())["programs"][0]
        except (ValueError, IndexError):
            output = f"exit code {ran.returncode}\n{ran.stdout}{ran.stderr}"
            return {"program": program.name, "clean": program.is_clean, "expected": [], "error": output}


def is_wrong(result):
    return bool("error" in result or result["missed"] or result["wrong_line"] or result["false_alarms"])


def details(result):
    if "error" in result:
        return [f"  error: {line}" for line in result["error"].rstrip().splitlines()]
    lines = [f"  missed: {each['expected']}" for each in result["missed"]]
    lines += [f"  wrong line: {each['words']}; expected {each['expected']}" for each in result["wrong_line"]]
    return lines + [f"  false alarm: {each['words']}" for each in result["false_alarms"]]


def counts(results, rules):
    """Per kind: programs that have such a hazard, hazards, found, missed, false alarms, wrong lines."""
    columns = ("programs", "hazards", "found", "missed", "false_alarms", "wrong_line")
    table = collections.defaultdict(lambda: dict.fromkeys(columns, 0))
    for result in results:
        if "error" in result:
            continue
        seen = set()
        for key in ("found", "missed", "wrong_line"):
            for each in result[key]:
                rule = each["rule"] if key == "found" else each["rules"][0] if key == "missed" else each["finding"]["rule"]
                table[rule]["hazards"] += 1
                table[rule][key] += 1
                seen.add(rule)
        for rule in seen:
            table[rule]["programs"] += 1
        for each in result["false_alarms"]:
            table[each["finding"]["rule"]]["false_alarms"] += 1
    order = list(rules)
    return {rules[rule].kind: {"rule": rule, **table[rule]} for rule in sorted(table, key=order.index)}


def print_table(table, totals):
    head = ("rule", "kind", "programs", "hazards", "found", "missed", "false alarms", "wrong line")
    print("{:7} {:24} {:>9} {:>8} {:>6} {:>7} {:>13} {:>11}".format(*head))
    for kind, row in table.items():
        numbers = [row[key] for key in ("programs", "hazards", "found", "missed", "false_alarms", "wrong_line")]
        print("{:7} {:24} {:9} {:8} {:6} {:7} {:13} {:11}".format(row["rule"], kind, *numbers))
    print(", ".join(f"{value} {name.replace('_', ' ')}" for name, value in totals.items()))


def run_eagerly(programs, device):
    failed = 0
    for program in programs:
        if program.why_not(device):
            continue
        try:
            corpus.run_eagerly(program, device)
        except Exception:
            failed += 1
            print(f"{program.name}\n{traceback.format_exc()}")
    print(f"{len(programs)} programs, {failed} failed")
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--eager", action="store_true", help="only run the steps, without Pianola")
    parser.add_argument("--isolate", action="store_true", help="each program in a process of its own")
    parser.add_argument("--text", action="store_true", help="print the reports")
    parser.add_argument("--exact", action="store_true", help="a name is a whole name")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()

    programs = corpus.programs(arguments.names)
    if arguments.exact:
        programs = [program for program in programs if program.name in arguments.names]
    if not programs:
        parser.error(f"no program is called {' '.join(arguments.names)}")
    if arguments.eager:
        return run_eagerly(programs, arguments.device)

    import pianola  # noqa: F401  here, so that it is missed once and not once per program

    results, skipped = [], {}
    for program in programs:
        reason = program.why_not(arguments.device)
        if reason:
            skipped[program.name] = reason
            continue
        if arguments.isolate:
            results.append(isolated_result(program, arguments.device))
        else:
            results.append(result_of(program, arguments.device, arguments.text))
        if is_wrong(results[-1]):
            print("\n".join([program.name, *details(results[-1])]), flush=True)

    table = counts(results, corpus.hazard_rules())
    totals = {
        "hazardous_programs": sum(not result["clean"] for result in results),
        "clean_programs": sum(result["clean"] for result in results),
        **{key: sum(row[key] for row in table.values()) for key in ("hazards", "found", "missed", "wrong_line", "false_alarms")},
        "errors": sum("error" in result for result in results),
        "skipped": len(skipped),
    }
    print_table(table, totals)
    if arguments.json:
        arguments.json.write_text(json.dumps({
            "device": arguments.device, "device_name": device_name(arguments.device), "versions": versions(),
            "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]), "totals": totals, "kinds": table,
            "skipped": skipped, "programs": results}, indent=1) + "\n")
    return 1 if any(is_wrong(result) for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
