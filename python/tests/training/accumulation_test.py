"""Gradients accumulated over several calls, the last of which steps, as training loops do it by the number of the batch."""

import pytest
import torch
from torch import nn

import pianola
from twins import assert_same

CALLS = 48


def batch(i, device):
    generator = torch.Generator().manual_seed(i)
    return torch.randn(6, 8, generator=generator).to(device), torch.randint(0, 4, (6,), generator=generator).to(device)


def build(device, every, set_to_none, graphed):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(x, y, i):
        loss = nn.functional.cross_entropy(model(x), y) / every
        loss.backward()
        if (i + 1) % every == 0:
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)
        return loss.detach()

    return model, pianola.graphed(step) if graphed else step


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("every", [2, 3, 4])
def test_every_call_replays(device, every, set_to_none):
    model, step = build(device, every, set_to_none, True)
    twin, eager = build(device, every, set_to_none, False)
    for i in range(CALLS):
        assert_same(f"call {i}", step(*batch(i, device), i), eager(*batch(i, device), i))
    for (name, one), other in zip(model.named_parameters(), twin.parameters()):
        assert_same(name, one, other)
        assert (one.grad is None) == (other.grad is None)
    signatures = step.info().signatures
    assert sum(one.replays for one in signatures) >= CALLS - 12, [one.reason for one in signatures]


def test_gradients_that_are_made_outside_each_time_keep_it_eager(device):
    def build(graphed):
        torch.manual_seed(0)
        model = nn.Linear(8, 4).to(device)

        def step(x):
            loss = model(x).square().mean()
            loss.backward()
            with torch.no_grad():
                for p in model.parameters():
                    p.sub_(p.grad, alpha=0.1)
            model.zero_grad()
            return loss.detach()

        return model, pianola.graphed(step) if graphed else step

    (model, step), (twin, eager) = build(True), build(False)
    for i in range(CALLS):
        x, _ = batch(i, device)
        for one, function in ((model, step), (twin, eager)):
            for p in one.parameters():
                p.grad = torch.full_like(p, 0.5)
        assert_same(f"call {i}", step(x), eager(x))
    for one, other in zip(model.parameters(), twin.parameters()):
        assert_same("parameter", one, other)
    (signature,) = step.info().signatures
    assert signature.state == "eager" and "PG401" in signature.reason
