"""A step with graphs of each scope, tried: `pianola.try_scopes`, `pianola decide --try`."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pianola
import pytest
import torch
import torch.nn.functional as F
from pianola._try_scopes import Trial, TriedScopes
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        return x + self.down(F.dropout(F.gelu(self.up(self.norm(x))), 0.1, self.training))


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Sequential(*(Block() for _ in range(3))), nn.Linear(16, 4))


def batches(device):
    return [(torch.randn(8, 16, device=device), torch.randint(4, (8,), device=device)) for _ in range(5)]


def make(device, before_backward=lambda loss: None):
    def make_step():
        model = Net().to(device)
        optimizer = torch.optim.AdamW(model.parameters())

        def step(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            before_backward(loss)
            loss.backward()
            optimizer.step()
            return loss

        return step

    return make_step


def by_scope(tried):
    return {one.scope: one for one in tried.trials}


def test_a_training_step_is_tried_with_graphs_of_its_layers_its_model_and_all_of_it(device):
    tried = pianola.try_scopes(make(device), batches=batches(device), iterations=8)
    of = by_scope(tried)
    assert list(of) == ["eager", "layers", "model", "iteration"]
    assert all(one.is_equal and one.ms > 0 and not one.reason for one in tried.trials), str(tried)
    assert (of["layers"].replays, of["model"].replays, of["iteration"].replays) == (3 * 16, 16, 16)
    assert [of[scope].write for scope in ("layers", "model", "iteration")] == [
        "pianola.graph_layers(Net)", "pianola.graphed(Net)", "step = pianola.graphed(step)"]  # fmt: skip


def test_what_graphs_of_each_scope_take_stands_beside_its_time(device):
    tried = pianola.try_scopes(make(device), batches=batches(device), iterations=4)
    of = by_scope(tried)
    assert of["eager"].memory is None and all(of[scope].memory.pool_bytes > 0 for scope in ("layers", "model", "iteration"))
    assert of["iteration"].memory.executable_bytes > 0 and of["iteration"].memory.fits is (True if device.type == "cuda" else None)
    report = json.loads(tried.to_json())
    told = pianola.predict_scopes(make(device)(), batches(device), device=device)
    assert report["trials"][0]["pool_bytes"] is None and report["trials"][3]["pool_bytes"] == told.scopes[3].pool_bytes
    assert report["trials"][3]["fits"] == ("yes" if device.type == "cuda" else None)
    assert (report["free_bytes"] is None) == (device.type == "cpu")
    assert ("iteration: It fits: a capture takes" in str(tried)) == (device.type == "cuda")


def test_batches_of_the_host_are_no_reason_to_look_at_the_hosts_memory(device):
    def make_step():
        step = make(device)()
        return lambda x, y: step(x.to(device), y.to(device))

    of = by_scope(pianola.try_scopes(make_step, batches=batches("cpu"), iterations=4))
    assert of["iteration"].memory.pool_bytes > 0 and of["iteration"].memory.fits is (True if device.type == "cuda" else None)


def test_a_step_that_reads_a_value_says_why_it_is_no_graph_and_its_model_is_one(device):
    tried = pianola.try_scopes(make(device, lambda loss: loss.mul_(float(loss.detach()))), batches=batches(device), iterations=4)
    of = by_scope(tried)
    assert of["iteration"].replays == 0 and "PG101" in of["iteration"].reason
    assert of["model"].replays and of["layers"].replays and all(one.is_equal for one in tried.trials)
    assert "What stays eager" in str(tried) and (tried.chosen is None or tried.chosen.scope != "iteration")


def test_a_graph_that_is_not_like_eager_is_seen(device):
    calls = []

    def noisy(loss):
        calls.append(1)
        loss.data += len(calls)  # another number in each run of the function

    tried = pianola.try_scopes(make(device, noisy), batches=batches(device), iterations=4)
    assert not any(one.is_equal for one in tried.trials[1:])
    assert tried.chosen is None and str(tried).count("NO") == 3


def test_inference_and_a_step_without_a_model_are_tried(device):
    def make_step():
        weight = torch.randn(16, 16, device=device)
        return lambda x, y: x @ weight

    of = by_scope(pianola.try_scopes(make_step, batches=batches(device), iterations=4))
    assert of["layers"].reason == of["model"].reason == "the step calls no model" and of["iteration"].replays == 12

    def make_inference():
        model = nn.Linear(16, 4).to(device).eval()
        return torch.no_grad()(lambda x, y: model(x))

    of = by_scope(pianola.try_scopes(make_inference, batches=batches(device), iterations=4))
    assert of["layers"].reason == "no model has a list of layers" and of["model"].replays == 12


@pytest.mark.parametrize(
    "times, chosen",
    [
        ((10.0, 5.0, 6.0, 5.1), "iteration"),  # as fast as the layers, and larger
        ((10.0, 5.0, 6.0, 5.5), "layers"),
        ((10.0, 9.9, 9.9, 11.0), None),
    ],
)
def test_the_largest_scope_among_the_fastest_is_taken(times, chosen):
    trials = [Trial(scope, ms, replays=10) for scope, ms in zip(("eager", "layers", "model", "iteration"), times)]
    tried = TriedScopes("step", "cpu", 32, trials)
    assert (tried.chosen.scope if tried.chosen else None) == chosen
    trials[1].is_equal = trials[3].is_equal = False
    assert tried.chosen is None or tried.chosen.scope == "model"


class Checkpointed(Net):
    def forward(self, x):
        for block in self[0]:
            x = checkpoint(block, x, use_reentrant=True)
        return self[1](x)


def test_what_a_checkpoint_recomputes_is_no_model_of_its_own(device):
    def make_step():
        model = Checkpointed().to(device)

        def step(x, y):
            model.zero_grad()
            loss = F.cross_entropy(model(x.requires_grad_()), y)
            loss.backward()
            return loss

        return step

    of = by_scope(pianola.try_scopes(make_step, batches=batches(device), iterations=4))
    assert of["model"].write == "pianola.graphed(Checkpointed)"


def test_scopes_are_tried_where_their_memory_cannot_be_told(device, monkeypatch):
    def refuses(step, batches, *, device):
        raise pianola.UnsupportedError("memory of cuda:0 cannot be watched")

    monkeypatch.setattr(pianola._try_scopes, "predict_scopes", refuses)
    tried = pianola.try_scopes(make(device), batches=batches(device), iterations=4)
    assert all(one.is_tried and one.memory is None for one in tried.trials) and "free_bytes" not in json.loads(tried.to_json())


def test_what_is_wrong_is_refused():
    with pytest.raises(pianola.UsageError, match="iterations must be 1 or more, got 0"):
        pianola.try_scopes(lambda: None, iterations=0)
    with pytest.raises(pianola.UsageError, match="make_step returned a NoneType"):
        pianola.try_scopes(lambda: None)


SCRIPT = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [(torch.randn(4, 8), torch.randn(4, 1)) for _ in range(3)]


def step(x, y):
    optimizer.zero_grad()
    loss = (model(x) - y).square().mean()
    loss.backward()
    optimizer.step()
    return loss


def make_step():
    return step, {"batches": batches[:1]}
"""


@pytest.mark.parametrize("function", ["step", "make_step"])
def test_the_program_loads_a_script_anew_for_each_scope(function, tmp_path, cpu):
    (tmp_path / "train.py").write_text(SCRIPT)
    ran = subprocess.run([sys.executable, "-m", "pianola", "decide", "--try", f"train.py:{function}", "--iterations", "4", "--json", "-"],
                         cwd=tmp_path, capture_output=True, text=True, timeout=120)  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert [one["scope"] for one in report["trials"]] == ["eager", "layers", "model", "iteration"]
    assert all(one["equal"] == "bit-equal" for one in report["trials"][1:]) and report["trials"][3]["replays"] == 12
    assert [one["pool_bytes"] is None for one in report["trials"]] == [True, True, False, False]
    assert report["reasons"] == ["layers: no model has a list of layers"]


def test_a_scope_whose_graphs_would_not_fit_is_not_tried(device, monkeypatch):
    verdict = "It does not fit: a capture takes 3 GiB of the driver and 1 GiB for copies, and the driver has 2 GiB left."
    told = SimpleNamespace(verdict=verdict, fits=False, pool_bytes=3 << 30, executable_bytes=4096)
    monkeypatch.setattr(pianola._try_scopes, "_told_of", lambda scope, forecast: told if scope == "iteration" else None)
    tried = pianola.try_scopes(make(device), batches=batches(device), iterations=4)
    of = by_scope(tried)
    assert [one.scope for one in tried.trials if one.is_tried] == ["eager", "layers", "model"]
    assert of["model"].replays > 0 and of["iteration"].replays == 0
    assert f"iteration: {verdict}" in str(tried) and "not tried" in str(tried)
    trial = json.loads(tried.to_json())["trials"][3]
    assert (trial["fits"], trial["pool_bytes"], trial["executable_bytes"]) == ("no", 3 << 30, 4096)
    assert tried.chosen is None or tried.chosen.scope != "iteration"
