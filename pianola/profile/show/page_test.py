"""The page of a report: its colours, and what a browser makes of it, where there is one."""

import html
import itertools
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PROFILES = HERE.parents[2] / "tests/data/profile"
PROGRAM = os.environ.get("PIANOLA_PROGRAM", "pianola")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

CSS = (HERE / "page.css").read_text()
SCHEMES = dict(zip(("light", "dark"), (dict(re.findall(r"--([\w-]+): (#\w{6})", block))
                                       for block in re.findall(r":root\{(.*?)\}", CSS, re.DOTALL))))
scheme = pytest.mark.parametrize("colours", SCHEMES.values(), ids=SCHEMES)

# Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency" (2009), severity 1.0.
VISIONS = {
    "full": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
TO_XYZ = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
MARKS = ("kernel", "copy", "memset", "launch", "graph", "synchronization", "data", "device")
ROWS = (("kernel", "copy", "memset"), ("launch", "graph", "copy", "synchronization"),
        ("kernel", "launch", "synchronization", "data", "copy", "device"))  # the last: in the bar of the idle time


def times(matrix, vector):
    return [sum(a * b for a, b in zip(row, vector)) for row in matrix]


def linear(colour):
    """sRGB "#rrggbb" as linear light, 0 to 1 (IEC 61966-2-1)."""
    values = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in values]


def contrast(a, b):
    """That of WCAG."""
    low, high = sorted(times(TO_XYZ[1:2], linear(colour))[0] + 0.05 for colour in (a, b))
    return high / low


def lab(colour, vision):
    seen = [min(1, max(0, c)) for c in times(vision, linear(colour))]
    x, y, z = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116
               for v in (c / white for c, white in zip(times(TO_XYZ, seen), (0.9505, 1, 1.089))))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@scheme
def test_text_is_readable_and_marks_are_seen(colours):
    on = {"page": ("text", "muted", "accent", "good", "caution", "neutral"), "raised": ("text", "muted", "accent"),
          "range": ("text",), "on-mark": ("good", "caution", "neutral", "accent")}
    for ground, texts in on.items():
        for text in texts:
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for mark in MARKS:
        assert contrast(colours[mark], colours["page"]) >= 3, mark


@scheme
@pytest.mark.parametrize("vision", VISIONS)
def test_marks_of_one_row_differ_for_every_kind_of_colour_vision(colours, vision):
    for a, b in itertools.chain.from_iterable(itertools.combinations(row, 2) for row in ROWS):
        one, other = (lab(colours[name], VISIONS[vision]) for name in (a, b))
        assert sum((x - y) ** 2 for x, y in zip(one, other)) ** 0.5 >= 20, (a, b)


def test_every_colour_is_declared_in_both_schemes():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)
    used = set(re.findall(r"var\(--([\w-]+)\)", CSS)) - {"c"}  # what a class sets for its marks
    assert used <= set(SCHEMES["light"]) == set(SCHEMES["dark"])
    assert "@media screen and (prefers-color-scheme:dark)" in CSS, "it prints in light"


def shown(page):
    """The page's elements, as a browser has made them."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={page.parent / 'browser'}", "--window-size=1200,900",
               "--virtual-time-budget=5000"]
    ran = subprocess.run([BROWSER, *options, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=120)
    return re.sub(r"<(script|style|noscript).*?</\1>", "", ran.stdout, flags=re.DOTALL)


def page_of(profile, tmp_path):
    page = tmp_path / "page.html"
    ran = subprocess.run([PROGRAM, "decide", profile, "--html", page], capture_output=True, text=True)
    if "zlib" in ran.stderr:
        pytest.skip("built without zlib")
    assert ran.returncode == 0, ran.stderr
    return page


@pytest.mark.skipif(not BROWSER, reason="no browser")
def test_a_browser_shows_every_part(tmp_path):
    dom = shown(page_of(PROFILES / "mlp_gpu_torch.json.gz", tmp_path))
    text = html.unescape(re.sub(r"<[^>]*>", "\n", dom)).replace("\u00a0", " ")
    for words in ("Graph it, whole iteration: 13.78 times as fast, 414 us", "The device is busy 6.4 % of an iteration of 5.70 ms",
                  "Iteration 4 of 9, the one nearest to the median duration (5.70 ms).", "1.05 ms", "stream 7", "500 us",
                  "Longest gaps of this timeline", "the host had not issued the next work yet", "Kernels by duration",
                  "now 5.70 ms", "512 us to 816 us", "The call to write: whole iteration", "AddmmBackward0", "autograd node",
                  "What was profiled", "mlp_gpu_torch.json.gz"):
        assert words in text, words
    for element in ('class="tick"', 'class="name"', 'class="bar"', 'class="interval"', 'class="limit"', "<summary>",
                    ">Show</button>", ">Copy</button>", 'aria-sort="descending"', 'class="gaps"'):
        assert element in dom, element
    assert len(re.findall("<rect", dom)) > 300
    assert not re.findall("NaN|undefined|null|Infinity", dom)


@pytest.mark.skipif(not BROWSER, reason="no browser")
def test_names_from_a_profile_stay_text(tmp_path):
    hostile = "</script><img src=x onerror=document.title=1>"
    events = [{"ph": "X", "cat": "kernel", "name": hostile, "pid": 0, "tid": 7, "ts": 100 * i, "dur": 50,
               "args": {"device": 0, "stream": 7, "correlation": i + 1}} for i in range(20)]
    trace = tmp_path / "<b>.json"
    trace.write_text(json.dumps({"traceEvents": events}))
    dom = shown(page_of(trace, tmp_path))
    assert "&lt;/script&gt;&lt;img src=x onerror=document.title=1&gt;" in dom
    assert "/&lt;b&gt;.json" in dom
    assert "<img" not in dom and "<b>" not in dom
