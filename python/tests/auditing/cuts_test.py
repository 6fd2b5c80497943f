"""Which pieces of a step the host cuts apart by what it reads."""

import sys
from pathlib import Path

import torch

import pianola

sys.path.insert(0, str(Path(__file__).parent.parent))
from layer_programs import Gpt, words  # noqa: E402


def test_a_mixture_of_experts_and_a_decision_by_the_loss(device):
    torch.manual_seed(0)
    model = Gpt(layers=2, moe=True).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    ids = words(1, device)

    def step():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        if loss.item() > 1e6:
            print("far off")
        optimizer.step()

    report = pianola.audit(step, trial=False)
    assert {(Path(cut.file).name, cut.op.split("_numpy")[0]) for cut in report.cuts} == {
        ("layer_programs.py", "aten::nonzero"),
        ("cuts_test.py", "aten::item"),
    }
    assert report.cuts[-1].op == "aten::item" and report.cuts[-1].before > 20  # the backward pass
    assert sum(cut.before for cut in report.cuts) < report.operations
    assert "graphs as it is, of " in str(report)


def test_a_step_without_reads_is_one_piece(device):
    model = torch.nn.Linear(4, 4).to(device)
    x = torch.ones(2, 4, device=device)
    report = pianola.audit(lambda: model(x).sum(), trial=False)
    assert report.cuts == [] and "graphs as it is" not in str(report)
