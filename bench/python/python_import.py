"""What `import pianola` adds to `import torch`."""

import json
import subprocess
import sys

from measuring import case

PROCESSES = 10
TORCH = "import torch"
PIANOLA = "import pianola, after it"

PROGRAM = """
import sys, time
del sys.path[0]  # the current folder, where sources may be named as packages
start = time.perf_counter()
import torch
between = time.perf_counter()
import pianola
end = time.perf_counter()
print([(between - start) * 1000, (end - between) * 1000])
"""


def imported():
    """Milliseconds of both imports in a new process."""
    ran = subprocess.run([sys.executable, "-c", PROGRAM], check=True, text=True, stdout=subprocess.PIPE)
    return json.loads(ran.stdout)


def run(settings):
    imported()  # the files come from the disk
    both = [imported() for _ in range(settings.some(PROCESSES))]
    samples = {TORCH: [times[0] for times in both], PIANOLA: [times[1] for times in both]}
    return [case("New process", "time of the import", 1, TORCH, samples, unit="ms")]
