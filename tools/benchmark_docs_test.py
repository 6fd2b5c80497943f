"""The page of benchmarks is what the committed results make."""

import subprocess
import sys
from pathlib import Path


def test_the_page_is_what_the_results_make():
    checked = subprocess.run([sys.executable, Path(__file__).with_name("benchmark_docs.py"), "--check"],
                             capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
