"""What the programs share that make pages."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def write_or_check(usage, pages):
    """Writes what `pages()` makes, {page: its text}; with --check says which of them are not so. The exit code."""
    arguments = sys.argv[1:]
    if arguments not in ([], ["--check"]):
        print(usage, file=sys.stderr)
        return 2
    made = pages()
    if arguments == ["--check"]:
        stale = [page.relative_to(ROOT) for page, text in made.items() if not page.exists() or page.read_text() != text]
        for page in stale:
            print(f"{page} is stale; run tools/{Path(sys.argv[0]).name}", file=sys.stderr)
        return 1 if stale else 0
    for page, text in made.items():
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text)
    return 0
