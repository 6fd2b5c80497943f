"""Checks that C++ sources compile alone: without the other files of their unit, and without precompiled headers.

    compile_alone.py                  all of them, which takes long
    compile_alone.py --since COMMIT   those that changed since COMMIT, new ones included
    compile_alone.py FILE ...         these

With --cuda FOLDER, CUDA's headers are those that `pip install --target FOLDER --no-deps nvidia-cuda-runtime-cu12 ...` has put there, in
place of those that torch was built with; without files, what includes CUDA's headers is compiled.

Only the syntax is looked at; nothing is linked. Wants the preset `alone` configured: `make alone` does both.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = ROOT / "build" / "alone" / "compile_commands.json"


def commands(file=COMMANDS):
    """{source: (folder, command without its output, for the syntax alone)}"""
    found = {}
    for entry in json.loads(file.read_text()):
        words = shlex.split(entry["command"])
        output = words.index("-o")
        found[Path(entry["file"])] = (entry["directory"], [*words[:output], *words[output + 2 :], "-fsyntax-only"])
    return found


def with_cuda(words, folder):
    """The command, with the headers below `folder` in place of those of the wheel beside torch."""
    includes = [*folder.glob("nvidia/*/include"), *folder.glob("nvidia/*/include/cccl")]
    if not any((one / "cuda_runtime_api.h").exists() for one in includes):
        raise SystemExit(f"{folder} has no headers of CUDA: pip install --target {folder} --no-deps nvidia-cuda-runtime-cu12 ...")
    ours, result = [part for path in sorted(includes) for part in ("-isystem", str(path))], []
    for word in words:
        if re.search(r"/nvidia/cu\d+/include(/cccl)?$", word):
            result.pop()  # its -isystem
            result, ours = result + ours, []
        else:
            result.append(word)
    return result


def includes_cuda(file):
    """By its own words, or those of the header beside it."""
    texts = [one.read_text() for one in (file, file.with_suffix(".hpp")) if one.exists()]
    return any(re.search(r"#include <(cuda|cublas|cupti|nvtx|ATen/cuda/|c10/cuda/)", text) for text in texts)


def changed(since):
    """Sources that differ from the commit."""
    def lines(*words):
        ran = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
        return ran.stdout.splitlines()

    names = lines("diff", "--name-only", "--diff-filter=d", since) + lines("ls-files", "--others", "--exclude-standard")
    return [ROOT / name for name in names if name.endswith(".cpp")]


def compile_alone(command):
    folder, words = command
    return subprocess.run(words, cwd=folder, capture_output=True, text=True)


def main(arguments):
    parser = argparse.ArgumentParser(description="Checks that C++ sources compile alone.")
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--since", metavar="COMMIT", help="those that changed since then")
    parser.add_argument("--cuda", metavar="FOLDER", type=Path, help="with CUDA's headers of wheels that pip has put there")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args(arguments)
    known = commands()
    wanted = [file.resolve() for file in options.files] + (changed(options.since) if options.since else [])
    if options.files or options.since:
        unknown = [file for file in options.files if file.resolve() not in known]
        if unknown:
            print(f"no command compiles {', '.join(map(str, unknown))}", file=sys.stderr)
            return 1
        known = {file: known[file] for file in wanted if file in known}
    if options.cuda:
        known = {file: (folder, with_cuda(words, options.cuda)) for file, (folder, words) in known.items() if wanted or includes_cuda(file)}
    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(zip(known, pool.map(compile_alone, known.values())))
    failed = [(file, ran.stderr) for file, ran in results if ran.returncode]
    for file, errors in failed:
        print(f"{file.relative_to(ROOT) if file.is_relative_to(ROOT) else file}: does not compile alone\n{errors}")
    print(f"{len(results) - len(failed)} of {len(results)} files compile alone")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
