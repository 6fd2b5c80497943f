"""Fuzzes python/pianola/_nsight.py, which reads exports of Nsight Systems, with damaged ones.

    nsight_fuzz.py [--runs 2000 | --seconds 600] [--findings FOLDER] [FILE ...]

Each input is refused in words, or gives a trace whose numbers are in their bounds; what the library makes of traces has a fuzzer of
its own. The same inputs each time. FILE: run these alone, or the corpus. What fails is left in FOLDER.
"""

import argparse
import io
import itertools
import json
import random
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python/pianola"))
import _nsight as nsight  # noqa: E402

NUMBERS = (0, 1, 5, 13, 127, 128, 255, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 63, (1 << 64) - 1)
FAR = 3_000_000_000_000_000  # microseconds
MOST_SECONDS = 5


def damaged(whole, chance):
    """Most often the pages' own numbers, with which SQLite finds its way."""
    data = bytearray(whole)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        at = chance.randrange(16, len(data))
        way = chance.randrange(5)
        if way == 0:
            data[at] = chance.randrange(256)
        elif way == 1:
            data[at] ^= 1 << chance.randrange(8)
        elif way == 2:
            size = chance.choice((1, 2, 4, 8))
            data[at : at + size] = (chance.choice(NUMBERS) & (1 << 8 * size) - 1).to_bytes(size, "big")
        elif way == 3:
            begin = chance.randrange(len(data))
            data[at : at + 32] = data[begin : begin + len(data[at : at + 32])]
        else:
            page = at // 512 * 512
            data[page + chance.randrange(12)] = chance.randrange(256)
    return bytes(data[: chance.randrange(len(data))]) if chance.randrange(20) == 0 else bytes(data)


def check(event):
    assert event["dur"] >= 0 and abs(event["ts"]) <= FAR, "times are in their bounds"
    args = event["args"]
    assert 0 <= args.get("bytes", 0) <= 1 << 56 and -(1 << 31) <= args.get("device", 0) < 1 << 31
    assert all(0 <= args.get(name, 0) < 1 << 64 for name in ("correlation", "graph id", "graph node id", "process"))
    assert event["pid"] >= -(1 << 31) and isinstance(event["name"], str)


def run(path, data):
    path.write_bytes(data)
    text = io.StringIO()
    begin = time.monotonic()
    try:
        nsight.write_trace(path, text)
    except nsight.Refused as refused:
        assert str(path) in str(refused) and "fix:   " in str(refused), "a refusal names the file and says what to do"
        return False
    finally:
        assert time.monotonic() - begin < MOST_SECONDS, "a small file is read in no time"
    document = json.loads(text.getvalue())
    for event in document["traceEvents"]:
        check(event)
    assert path.read_bytes() == data and all(isinstance(note, str) for note in document["pianolaNotes"])
    return True


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--findings", type=Path, default=Path("."))
    parser.add_argument("files", nargs="*", type=Path)
    options = parser.parse_args(arguments)
    corpus = options.files or sorted((ROOT / "tests/fuzz/corpus/nsight_export").iterdir())
    wholes = [file.read_bytes() for file in corpus]
    chance = random.Random(1)
    inputs = iter(wholes) if options.files else itertools.chain(wholes, (damaged(chance.choice(wholes), chance) for _ in itertools.count()))
    end = time.monotonic() + options.seconds if options.seconds else None
    read = runs = 0
    with tempfile.TemporaryDirectory() as folder:
        for data in inputs:
            if not options.files and (time.monotonic() > end if end else runs >= options.runs):
                break
            try:
                read += run(Path(folder, "input.sqlite"), data)
            except Exception:
                options.findings.mkdir(parents=True, exist_ok=True)
                (options.findings / f"nsight_export-{runs}").write_bytes(data)
                print(f"found: {options.findings / f'nsight_export-{runs}'}", file=sys.stderr)
                raise
            runs += 1
    print(f"nsight_export: {runs} inputs, {read} of them read, nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
