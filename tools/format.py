"""Formats the C++ sources with clang-format, or checks that they are formatted.

    format.py            rewrite
    format.py --check    name the files that are not formatted, and fail if there are any
"""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("pianola", "apps", "examples", "bench", "python", "tests")
FORMATTER = "clang-format-14"  # versions differ in what they find well formatted


def sources():
    files = (file for folder in FOLDERS for file in (ROOT / folder).rglob("*.[ch]pp"))
    return sorted(str(file.relative_to(ROOT)) for file in files)


def unformatted(files):
    """Those that clang-format would change; it says `FILE:LINE:COLUMN: error: ...` of each place."""
    ran = subprocess.run([FORMATTER, "--dry-run", "-Werror", *files], cwd=ROOT, capture_output=True, text=True)
    found = {line.split(":")[0] for line in ran.stderr.splitlines() if ": error: " in line}
    if ran.returncode and not found:
        raise SystemExit(f"{FORMATTER} failed: {ran.stderr}")
    return sorted(found)


def main(arguments):
    if not shutil.which(FORMATTER):
        print(f"{FORMATTER} is missing: install with `apt-get install {FORMATTER}`.", file=sys.stderr)
        return 1
    files = sources()
    if arguments != ["--check"]:
        return subprocess.run([FORMATTER, "-i", *files], cwd=ROOT).returncode
    wrong = unformatted(files)
    for file in wrong:
        print(f"{file}: not formatted")
    print(f"{len(files) - len(wrong)} of {len(files)} files are formatted" + ("; run `make format`" if wrong else ""))
    return 1 if wrong or not files else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
