"""The program as a user meets it: help, exit codes, messages, JSON. PIANOLA_PROGRAM is the path of the binary."""

import itertools
import json
import os
import subprocess
import sys
from xml.etree import ElementTree

import pytest
import torch

PROGRAM = os.path.abspath(os.environ["PIANOLA_PROGRAM"])
TEXT = "Permission is granted to copy, use and change this text, as long as this notice stays with it.\n" * 40


def run(*arguments, cwd=None, gpu=True, **environment):
    environment = os.environ | environment
    if not gpu:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    return subprocess.run(
        [PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=300, cwd=cwd, env=environment
    )


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_the_commands(arguments):
    result = run(*arguments)
    assert result.returncode == 0
    assert result.stderr == ""
    for word in ("Usage: pianola", "demo", "info", "schedule", "audit", "verify", "memory", "Exit codes", "3 hazards"):
        assert word in result.stdout


def test_help_of_a_command_lists_its_options():
    result = run("demo", "--help")
    assert result.returncode == 0
    for option in ("--device", "--text", "--steps", "--seed", "--threads", "--branches", "--lanes", "--json"):
        assert option in result.stdout


def test_version():
    result = run("--version")
    assert result.returncode == 0
    name, version = result.stdout.split()
    assert name == "pianola"
    assert len(version.split(".")) == 3


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["dance"], ["dance"]),
        (["demo", "--device", "tpu"], ["--device", "tpu"]),
        (["demo", "--steps", "0"], ["--steps"]),
        (["demo", "--steps", "-5"], ["--steps"]),
        (["demo", "--steps", "many"], ["--steps", "many"]),
        (["demo", "--threads", "0"], ["--threads"]),
        (["demo", "--branches", "-1"], ["--branches"]),
        (["demo", "--branches", "9"], ["--branches"]),
        (["demo", "--colour"], ["--colour"]),
        (["info", "now"], ["now"]),
        (["schedule"], ["order", "--gpipe", "--1f1b", "--interleaved"]),
        (["schedule", "1,-1", "--gpipe"], ["order", "--gpipe", "exclude each other"]),
        (["schedule", "--gpipe", "--1f1b"], ["--gpipe", "--1f1b", "exclude each other"]),
        (["schedule", "1,-1", "--rank", "0"], ["--rank", "not with an order"]),
        (["schedule", "1,-1", "--layers", "two"], ["--layers", "two"]),
        (["schedule", "--gpipe", "--microbatches", "many"], ["--microbatches", "many"]),
        (["schedule", "1,-1", "-1,1"], ["-1,1"]),
        (["audit"], ["STEP"]),
        (["audit", "net.pt", "--iterations", "1"], ["--iterations"]),
        (["audit", "net.pt", "--device", "tpu"], ["--device", "tpu"]),
        (["verify", "net.pt", "--steps", "0"], ["--steps"]),
        (["verify", "net.pt", "--input", "8xx16"], ["--input", "'8xx16' is no shape", "8x16:int64<100"]),
        (["audit", "net.pt", "--input", "8:complex"], ["--input", "'8:complex' is no shape"]),
    ],
)
def test_a_wrong_command_line_is_one_sentence_and_a_hint(arguments, words):
    result = run(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    message, hint = result.stderr.splitlines()
    assert message.startswith("pianola: ")
    assert all(word in message for word in words)
    command = arguments[0] if arguments[0] in ("audit", "demo", "info", "schedule", "verify") else None
    assert hint == (f"Try 'pianola {command} --help'." if command else "Try 'pianola --help'.")


def refused(*arguments, **kwargs):
    result = run("demo", "--steps", "2", *arguments, **kwargs)
    assert result.returncode == 1
    assert result.stderr.startswith("pianola: ")
    assert "step" not in result.stdout, "refused before the training"
    return result.stderr


def test_a_missing_text_is_named(tmp_path):
    path = tmp_path / "none.txt"
    assert f"cannot read the text '{path}'" in refused("--device", "cpu", "--text", path)


def test_an_empty_text_is_refused(tmp_path):
    path = tmp_path / "empty.txt"
    path.touch()
    assert f"the text '{path}' is empty" in refused("--device", "cpu", "--text", path)


def test_a_short_text_is_refused(tmp_path):
    path = tmp_path / "short.txt"
    path.write_text("too short")
    assert "the text has 9 characters, and at least" in refused("--device", "cpu", "--text", path)


def test_a_json_file_that_cannot_be_written_is_refused_before_the_training(tmp_path, text):
    path = tmp_path / "none" / "out.json"
    assert f"cannot write '{path}'" in refused("--device", "cpu", "--text", text, "--json", path)


def test_lanes_that_cannot_be_written_are_refused_before_the_training(tmp_path, text):
    path = tmp_path / "none" / "lanes.svg"
    assert f"cannot write '{path}'" in refused("--device", "cpu", "--text", text, "--branches", 4, "--lanes", path)


def test_lanes_without_branches_are_refused(tmp_path, text):
    message = refused("--device", "cpu", "--text", text, "--lanes", tmp_path / "lanes.svg")
    assert "--lanes draws parallel branches" in message
    assert "--branches 4" in message


def test_cuda_without_a_device_is_refused():
    assert "there is no CUDA device" in refused("--device", "cuda", gpu=False)


def test_info_is_text():
    result = run("info", gpu=False)
    assert result.returncode == 0
    for word in ("torch", "Backends", "tape", "cuda", "Devices", "cpu"):
        assert word in result.stdout


def test_info_is_json():
    result = run("info", "--json", gpu=False)
    assert result.returncode == 0
    info = json.loads(result.stdout)
    assert {"pianola", "torch", "cuda_runtime", "cuda_driver", "threads", "backends", "devices"} <= info.keys()
    backends = {row["backend"]: row["usable"] for row in info["backends"]}
    assert backends["tape"] == "yes"
    assert backends["cuda"].startswith("no: ")
    assert info["devices"][0]["device"] == "cpu"
    assert run("--version").stdout == f"pianola {info['pianola']}\n"


def test_info_tries_what_torch_has_inside():
    result = run("info", "--check", gpu=False)
    assert result.returncode == 0, result.stdout
    assert "What Pianola builds on inside torch" in result.stdout
    internals = json.loads(run("info", "--check", "--json", gpu=False).stdout)["internals"]
    assert {row["state"] for row in internals} == {"as needed"}
    assert {"operations", "operations of backward passes", "random numbers of graphs"} <= {row["internal"] for row in internals}


moved_slot = pytest.mark.skipif("PIANOLA_MOVED_SLOT" not in os.environ, reason="a sanitizer's runtime has to be loaded first")


@moved_slot
def test_info_names_what_has_moved_inside_torch():
    result = run("info", "--check", "--json", gpu=False, LD_PRELOAD=os.environ.get("PIANOLA_MOVED_SLOT", ""))
    assert result.returncode == 1
    states = {row["internal"]: row["state"] for row in json.loads(result.stdout)["internals"]}
    assert states["operations"] == "moved: '(x * 3).add_(1)' was seen as []"
    assert states["accumulators of gradients"] == "as needed"


@moved_slot
def test_nothing_is_captured_where_something_has_moved_inside_torch(tmp_path, text):
    arguments = ["demo", "--steps", "4", "--device", "cpu", "--text", text]
    moved = {"LD_PRELOAD": os.environ.get("PIANOLA_MOVED_SLOT", ""), "XDG_CACHE_HOME": str(tmp_path)}
    result = run(*arguments, **moved)
    assert result.returncode == 1
    assert "has changed inside: operations: '(x * 3).add_(1)' was seen as []" in result.stderr
    assert "'pianola info --check' shows all that has moved" in result.stderr
    assert not list(tmp_path.rglob("internals-*"))


def test_what_was_tried_once_is_not_tried_again(tmp_path, text):
    arguments = ["demo", "--steps", "4", "--device", "cpu", "--text", text]
    assert run(*arguments, XDG_CACHE_HOME=str(tmp_path)).returncode == 0
    (note,) = tmp_path.rglob("internals-*")
    written = note.stat().st_mtime_ns
    assert "libtorch_cpu.so" in note.read_text()
    assert run(*arguments, XDG_CACHE_HOME=str(tmp_path)).returncode == 0
    assert note.stat().st_mtime_ns == written


def test_demo_trains_twice_with_equal_bits(tmp_path, text):
    out = tmp_path / "demo.json"
    arguments = ["demo", "--steps", "20", "--device", "cpu", "--text", text, "--json", out]
    result = run(*arguments)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert "bit-equal" in result.stdout
    assert "\x1b" not in result.stdout
    report = json.loads(out.read_text())
    assert report["command"] == " ".join(["pianola", *map(str, arguments)])
    assert report["comparison"]["equal"] is True
    assert report["comparison"]["tensors"] > 100
    assert report["comparison"]["first_difference"] is None
    losses = report["losses"]
    assert len(losses["eager"]) == 20
    assert losses["eager"] == losses["replay"]
    assert losses["eager"][-1] < losses["eager"][0]
    assert [row["run"] for row in report["runs"]] == ["eager", "replay"]
    assert all(row["steps_per_s"] > 0 and row["host_us_per_step"] > 0 for row in report["runs"])
    assert report["graph"]["backend"] == "tape"
    assert report["graph"]["draws_random_numbers"] is True
    assert report["machine"]["torch"]
    assert len(report["sample"]) > 100


def test_demo_on_branches_trains_with_equal_bits_and_draws_them(tmp_path, text):
    out, lanes = tmp_path / "demo.json", tmp_path / "lanes.svg"
    result = run("demo", "--steps", 5, "--device", "cpu", "--text", text, "--branches", 4, "--lanes", lanes, "--json", out)
    assert result.returncode == 0, result.stderr
    assert "bit-equal" in result.stdout
    assert "  branches: replayed as captured: the tape" in result.stdout
    graph = json.loads(out.read_text())["graph"]
    assert graph["branches"]["branches"] == 4
    assert graph["branches"]["rebuilt"] is False
    assert graph["branches"]["lanes"] > 1
    assert graph["branches"]["proved_pairs"] > 100
    assert f"the plan has {graph['branches']['lanes']} lanes, modelled " in result.stdout
    picture = ElementTree.parse(lanes).getroot()
    assert picture.tag == "{http://www.w3.org/2000/svg}svg"
    boxes = [title for title in picture.iter("{http://www.w3.org/2000/svg}title") if " at " in title.text]
    assert len(boxes) == graph["branches"]["units"]


def test_demo_learns_one_step_and_a_text_beyond_ascii(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("déjà vu — naïve façade\n" * 20, encoding="utf-8")
    out = tmp_path / "demo.json"
    result = subprocess.run(
        [PROGRAM, "demo", "--steps", "1", "--device", "cpu", "--text", path, "--json", out],
        capture_output=True,  # as bytes: an untrained model writes no UTF-8
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(out.read_text(encoding="utf-8"))["comparison"]["equal"] is True


def test_schedule_shows_timeline_lifetimes_and_buffers():
    result = run("schedule", "[1, 2, 1, 2, -2, -1, -2, -1]", "--layers", "3,2")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    for line in (
        "valid                  yes",
        "order                  1,2,1,2,-2,-1,-2,-1",
        "layers                 5",
        "step      1   2   3   4   5   6   7   8",
        "chunk 1  F1   .  F2   .   .  B1   .  B2",
        "chunk 2   .  F1   .  F2  B1   .  B2   .",
        "    1           1     0  1 to 6         6                6 to 8",
        "output gradient       2              4",
    ):
        assert line in lines, line


@pytest.mark.parametrize(
    "arguments, order",
    [
        (["--gpipe", "--pipeline", 2, "--microbatches", 3, "--rank", 1], "1,1,1,-1,-1,-1"),
        (["--1f1b", "--pipeline", 2, "--microbatches", 3], "1,1,-1,1,-1,-1"),
        (
            ["--interleaved", "--pipeline", 2, "--virtual", 2, "--microbatches", 4, "--rank", 1],
            "1,1,2,-2,2,-2,1,-1,1,-1,2,-2,2,-2,-1,-1",
        ),
    ],
)
def test_schedule_builds_the_common_orders(arguments, order):
    result = run("schedule", *arguments, "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["order"] == order


def test_schedule_is_json():
    result = run("schedule", "--layers", "2", "1,1,-1,1,-1,-1", "--json")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["valid"] is True
    assert (report["steps"], report["chunks"], report["microbatches"], report["layers"]) == (6, 1, 3, 2)
    assert (report["buffers"], report["buffers_without_reuse"]) == (7, 12)
    assert report["chunk_sizes"] == [{"chunk": 1, "layers": 2, "first_layer": 0, "slots": 2}]
    assert len(report["lifetimes"]) == 12


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["-1,1"], ["-1 is a backward of chunk 1 before its first forward", "where: entry 1 of 2"]),
        (["[-1, 1]"], ["-1 is a backward of chunk 1 before its first forward", "where: entry 1 of 2"]),
        (["--", "-x,1"], ["'-x' is not a number", "where: entry 1 of 2"]),
        (["1,x,2"], ["'x' is not a number", "where: entry 2 of 3"]),
        (["1,3,-3,-1"], ["chunk 2 is missing, but chunk 3 occurs"]),
        (["1,-1.5"], ["that no backward has left to do", "where: entry 2 of 2"]),
        ([""], ["the schedule has no entries"]),
        (["1,-1", "--layers", "0"], ["chunk 1 must have 1 layer or more, got 0"]),
        (["1,2,-2,-1", "--layers", "1,-1"], ["chunk 2 must have 1 layer or more, got -1"]),
        (["--layers", "-1,1", "1,2,-2,-1"], ["chunk 1 must have 1 layer or more, got -1"]),
        (["--1f1b", "--pipeline", 2, "--rank", 2], ["rank must be 0 to 1 in a pipeline of 2, got 2"]),
        (["--1f1b", "--pipeline", -2], ["pipeline_size must be 1 or more, got -2"]),
        (
            ["--interleaved", "--pipeline", 4, "--virtual", 2, "--microbatches", 6],
            ["multiple of pipeline_size 4, got 6", "fix:   use 4 or 8 microbatches"],
        ),
    ],
)
def test_a_wrong_schedule_is_refused_by_the_library(arguments, words):
    for json_too in ([], ["--json"]):
        result = run("schedule", *json_too, *arguments)
        assert result.returncode == 1
        assert result.stdout == ""
        assert result.stderr.startswith("pianola: ")
        for word in words:
            assert word in result.stderr


def test_bench_hands_over_to_the_benchmarks():
    result = run("bench", "--list", "--device", "cpu", gpu=False)
    assert result.returncode == 0, result.stderr
    assert "cpu/tape_training_step" in result.stdout.split()


def test_bench_refuses_a_folder_for_traces_that_cannot_be_written(tmp_path):
    file = tmp_path / "file"
    file.touch()
    result = run("bench", "cpu/full_iteration", "--quick", "--traces", file, gpu=False)
    assert result.returncode == 2
    assert f"pianola_bench: cannot write traces into '{file}'" in result.stderr
    assert not result.stdout


MODEL = """
import sys, torch

class Model(torch.nn.Module):
    def __init__(self, branch: bool):
        super().__init__()
        self.layer = torch.nn.Linear(16, 4)
        self.branch = branch

    def forward(self, x):
        y = torch.relu(self.layer(x))
        if self.branch:
            if bool(y.sum() > 1e9):  # hazard
                y = -y
        return y

torch.manual_seed(0)
torch.jit.script(Model(False)).save("clean.pt")
torch.jit.script(Model(True)).save("branch.pt")
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """clean.pt, branch.pt, and the script that made them."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "model.py").write_text(MODEL)
    subprocess.run([sys.executable, "model.py"], cwd=folder, check=True, timeout=120)
    return folder


@pytest.mark.parametrize("train", [[], ["--train"]])
def test_audit_finds_nothing_in_a_clean_module(models, train):
    result = run("audit", models / "clean.pt", "--input", "8x16", "--device", "cpu", *train)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "no hazards" in result.stdout


def test_audit_names_the_line_of_the_script(models, tmp_path):
    result = run("audit", models / "branch.pt", "--input", "8x16", "--device", "cpu",
                 "--json", tmp_path / "a.json", "--sarif", tmp_path / "a.sarif")
    assert result.returncode == 3, result.stdout + result.stderr
    findings = json.loads((tmp_path / "a.json").read_text())["findings"]
    line = next(number for number, text in enumerate(MODEL.splitlines(), 1) if "# hazard" in text)
    assert [(finding["rule"], finding["place"]["line"]) for finding in findings] == [("PG101", line)]
    assert findings[0]["place"]["file"].endswith("model.py")
    sarif = json.loads((tmp_path / "a.sarif").read_text())
    assert sarif["version"] == "2.1.0" and sarif["runs"][0]["results"][0]["ruleId"] == "PG101"


@pytest.mark.parametrize("train", [[], ["--train"]])
def test_verify_proves_a_module_equal(models, train):
    result = run("verify", models / "clean.pt", "--input", "8x16", "--device", "cpu", "--json", "-", *train)
    assert result.returncode == 0, result.stdout + result.stderr
    assert json.loads(result.stdout)["verdict"] == "equal"


def test_verify_tells_why_a_module_cannot_be_captured(models):
    result = run("verify", models / "branch.pt", "--input", "8x16", "--device", "cpu")
    assert result.returncode == 1
    assert "[PG101]" in result.stderr and "model.py" in result.stderr


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["audit", "nowhere.pt"], ["cannot load 'nowhere.pt'", "torch.jit.save()"]),
        (["verify", "nowhere.pt"], ["cannot load 'nowhere.pt'"]),
        (["audit", "clean.pt", "--input", "8x3", "--device", "cpu", "--json", "/nonexistent/a.json"], ["cannot write"]),
    ],
)
def test_audit_and_verify_refuse_what_they_cannot_use(models, arguments, words):
    result = run(*arguments, cwd=models)
    assert result.returncode == 1
    for word in words:
        assert word in result.stderr


class Sound(torch.nn.Module):
    """Embedding, layers, batch norm and dropout: nothing that a graph minds."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(10, 16)
        self.linear = torch.nn.Linear(16, 16)
        self.norm = torch.nn.BatchNorm1d(16)

    def forward(self, tokens, x):
        y = self.embedding(tokens) + self.linear(x)
        return torch.nn.functional.dropout(self.norm(y), 0.1, self.training)


@pytest.fixture
def saved(tmp_path):
    """Saves a TorchScript module, and gives its file."""

    def save(module_class):
        torch.manual_seed(3)
        path = tmp_path / f"{module_class.__name__}.pt"
        torch.jit.script(module_class()).save(str(path))
        return path

    return save


SOUND_INPUTS = ("--input", "8:int64<10", "--input", "8x16")


@pytest.mark.parametrize("mode", [[], ["--train"]])
def test_verify_proves_a_sound_module_equal(saved, mode):
    result = run("verify", saved(Sound), *SOUND_INPUTS, *mode, "--steps", 4, "--device", "cpu")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.startswith("Sound.pt, eager against graphed\n")
    assert "equal, bit for bit" in result.stdout
    assert "at each of 4 steps" in result.stdout


def test_verify_prints_json(saved, tmp_path):
    result = run("verify", saved(Sound), *SOUND_INPUTS, "--train", "--device", "cpu", "--json", "-")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["verdict"] == "equal" and report["ok"] is True and report["steps"] == 5
    # two inputs, one result; three tensors of the norm; five parameters and their gradients
    assert report["tensors"] == 16
    out = tmp_path / "report.json"
    result = run("verify", saved(Sound), *SOUND_INPUTS, "--device", "cpu", "--json", out)
    assert "equal, bit for bit" in result.stdout
    assert json.loads(out.read_text())["verdict"] == "equal"


@pytest.mark.parametrize("command", ["audit", "verify"])
def test_a_file_that_is_no_module_is_refused(command, tmp_path):
    missing, text = tmp_path / "none.pt", tmp_path / "text.pt"
    text.write_text("no module")
    for path in (missing, text):
        result = run(command, path, "--input", "8x16", "--device", "cpu")
        assert result.returncode == 1
        assert result.stdout == ""
        message, *hints = result.stderr.splitlines()
        assert message.startswith(f"pianola: cannot load '{path}': ")
        assert hints == ["  fix:   pass a file that torch.jit.save() wrote"]


def test_a_damaged_module_is_refused(saved, tmp_path):
    whole = saved(Sound).read_bytes()
    damaged = {"cut": whole[: len(whole) // 2], "empty": b"", "zeros": bytes(len(whole)),
               "torch_save": whole.replace(b"code/", b"kode/"), "only_a_header": whole[:100]}
    for command, (name, contents) in zip(itertools.cycle(["audit", "verify"]), damaged.items()):
        path = tmp_path / f"{name}.pt"
        path.write_bytes(contents)
        result = run(command, path, "--input", "8x16", "--device", "cpu")
        assert (result.returncode, result.stdout) == (1, ""), (name, result)
        assert result.stderr.startswith(f"pianola: cannot load '{path}': "), (name, result)
        assert "frame #" not in result.stderr
    for path in (tmp_path, "/dev/zero"):
        result = run("audit", path, "--input", "8x16", "--device", "cpu")
        assert result.returncode == 1
        assert f"cannot load '{path}': it is no file" in result.stderr


def test_an_input_that_no_memory_holds_is_refused(saved):
    for shape in ("4000000000x4000000000x4000000000", "100000000000000", "9223372036854775807:int64<5"):
        result = run("verify", saved(Sound), "--input", shape, "--device", "cpu")
        assert (result.returncode, result.stdout) == (1, "")
        assert f"cannot make an input of the shape {shape.split(':')[0]}: " in result.stderr
        assert "frame #" not in result.stderr and "Exception raised" not in result.stderr


@pytest.mark.parametrize("train", [[], ["--train"]])
def test_memory_of_a_module_is_told_as_text_and_as_a_page(saved, tmp_path, train):
    page = tmp_path / "memory.html"
    result = run("memory", saved(Sound), *SOUND_INPUTS, *train, "--device", "cpu", "--html", page)
    assert result.returncode == 0, result.stderr
    for words in ("Memory of a graph", "in use at most", "pool, planned", "aten::"):
        assert words in result.stdout
    assert "<canvas" in page.read_text()


def test_memory_of_a_python_function_is_told(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import torch\nbatches = [(torch.ones(256, 256),)]\n\ndef step(x):\n    return (x @ x).relu()\n")
    page = tmp_path / "memory.html"
    result = run("memory", f"{script}:step", "--device", "cpu", "--json", "-", "--html", page)
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["blocks"] == 2 and told["bound_bytes"] == 2 * 256 * 256 * 4
    assert "step at train.py:5" in page.read_text()


def test_memory_of_a_module_is_told_scope_by_scope(saved):
    result = run("memory", saved(Sound), *SOUND_INPUTS, "--device", "cpu", "--scopes")
    assert result.returncode == 0, result.stderr
    for words in ("Memory of graphs, by what is in them", "lanes add at most", "whole iteration", "no user scope names a layer"):
        assert words in result.stdout


def test_memory_of_a_python_step_is_told_scope_by_scope(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nfrom torch import nn\n\n"
        "model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(3)))\n"
        "sgd = torch.optim.SGD(model.parameters(), lr=0.1)\nbatches = [(torch.ones(256, 64),)]\n\n"
        "def step(x):\n    sgd.zero_grad()\n    model(x).square().mean().backward()\n    sgd.step()\n"
    )
    for words in (["--scopes", f"{script}:step"], [f"{script}:step", "--scopes"]):
        result = run("memory", *words, "--device", "cpu", "--json", "-")
        assert result.returncode == 0, result.stderr
        scopes = {one["scope"]: one for one in json.loads(result.stdout)["scopes"]}
        assert list(scopes) == ["each layer", "forward and backward", "iteration without optimizer", "whole iteration"]
        assert scopes["whole iteration"]["input_bytes"] == 256 * 64 * 4
        assert scopes["whole iteration"]["pool_bytes"] > 0 and scopes["forward and backward"]["graphs"] == 2


def test_a_page_of_scopes_is_refused(saved, tmp_path):
    result = run("memory", saved(Sound), *SOUND_INPUTS, "--device", "cpu", "--scopes", "--html", tmp_path / "memory.html")
    assert result.returncode == 2 and "--scopes" in result.stderr


def test_a_captured_module_shows_what_its_graph_has(saved, tmp_path):
    page = tmp_path / "memory.html"
    result = run("memory", saved(Sound), *SOUND_INPUTS, "--device", "cpu", "--capture", "--html", page, "--json", tmp_path / "memory.json")
    assert result.returncode == 0, result.stderr
    told = json.loads((tmp_path / "memory.json").read_text())
    graph = told["graph"]
    assert graph["pool_bytes"] == graph["held_bytes"] + graph["scratch_bytes"] + graph["fragment_bytes"] > 0
    assert told["forecast"]["pool_bytes"] > 0 and len(told["process"]["pools"]) == 1
    assert "<canvas" in page.read_text()


def test_a_captured_python_step_shows_what_its_graph_has(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import torch\nbatches = [(torch.ones(256, 256),)]\n\ndef step(x):\n    return (x @ x).relu()\n")
    result = run("memory", "--capture", f"{script}:step", "--device", "cpu", "--json", "-")
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["graph"]["held_bytes"] >= 256 * 256 * 4
    assert "step at train.py:5" in told["graph"]["at_peak"][0]["made at"]


def test_a_python_step_that_no_graph_can_hold_is_told_why(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import torch\nbatches = [(torch.ones(4),)]\n\ndef step(x):\n    return 3\n")
    result = run("memory", "--capture", f"{script}:step", "--device", "cpu")
    assert result.returncode == 2
    assert "no graph was made of the step" in result.stderr and "the step is empty" in result.stderr


def test_verify_with_too_few_inputs_says_so(saved):
    result = run("verify", saved(Sound), "--input", "8:int64<10", "--device", "cpu")
    assert result.returncode == 1
    assert "'Sound.pt' does not run with these inputs" in result.stderr
    assert "--input" in result.stderr


@pytest.mark.parametrize("command", ["audit", "verify"])
def test_a_module_on_cuda_without_a_device_is_refused(command, saved):
    result = run(command, saved(Sound), *SOUND_INPUTS, "--device", "cuda", gpu=False)
    assert result.returncode == 1
    assert "there is no CUDA device" in result.stderr


STEP = """
import torch

weight = torch.ones(4, 4)


def step():
    return (weight @ weight).sum()


def reads():
    return weight * weight.sum().item()
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "train.py").write_text(STEP)
    return tmp_path / "train.py"


def run_with_python(*arguments, python=sys.executable):
    environment = {**os.environ, "PIANOLA_PYTHON": python}
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=300, env=environment)


def test_functions_of_python_files_are_audited(script):
    clean = run_with_python("audit", f"{script}:step")
    assert (clean.returncode, clean.stderr) == (0, "")
    found = run_with_python("audit", f"{script}:reads")
    assert found.returncode == 3
    assert "PG101" in found.stdout and "train.py:12" in found.stdout


@pytest.mark.parametrize("command", ["profile", "decide"])
def test_functions_of_python_files_are_profiled(command, script, tmp_path):
    ran = run_with_python(command, f"{script}:step", "--iterations", "4", "--json", tmp_path / "p.json", "--html", tmp_path / "p.html")
    assert ran.returncode == 0, ran.stderr
    assert json.loads((tmp_path / "p.json").read_text()) and "<html" in (tmp_path / "p.html").read_text()
    assert ran.stdout.strip()


@pytest.mark.parametrize("dashes", [["--"], []])
@pytest.mark.parametrize("word", ["{}:step", "image:latest"])
def test_a_word_of_another_program_is_no_function(script, tmp_path, dashes, word):
    result = run_with_python("profile", "--output", tmp_path / "none", *dashes, "/nonexistent/program", word.format(script), python="none")
    assert "cannot start 'none'" not in result.stderr and "/nonexistent/program" in result.stderr


def test_python_files_without_an_interpreter_say_what_to_do(script):
    result = run_with_python("audit", f"{script}:step", python="/nonexistent/python")
    assert result.returncode == 1
    assert "cannot start '/nonexistent/python'" in result.stderr
    assert "fix:   set PIANOLA_PYTHON" in result.stderr
