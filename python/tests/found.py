"""Programs whose reads change from call to call, trained beside eager."""

import pianola
import pytest
import torch
from torch import nn
from twins import assert_same

STEPS = 50


class Experts(nn.Module):
    """Each token goes to one expert. As people write it: which tokens, the host asks for each."""

    def __init__(self, width=8, count=4, skips=False, dropout=0.0):
        super().__init__()
        self.router = nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 16), nn.GELU(), nn.Dropout(dropout), nn.Linear(16, width)) for _ in range(count)
        )
        self.skips = skips

    def forward(self, x):
        weights, chosen = self.router(x).softmax(-1).max(-1)
        result = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            (tokens,) = torch.where(chosen == i)
            if self.skips and tokens.numel() == 0:
                continue
            result = result.index_add(0, tokens, (expert(x[tokens]) * weights[tokens, None]).to(x.dtype))
        return x + result


@pytest.fixture(autouse=True)
def graphs_are_faster(monkeypatch):
    """Whether they are, a test cannot rely on."""
    monkeypatch.setattr("pianola._timed_calls.Watch.fastest", lambda self: 1.0)


@pytest.fixture(autouse=True)
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def batch(i, tokens=64, side=0.0):
    return torch.randn(tokens, 8, generator=torch.Generator().manual_seed(i)) + side


def bits_of(tensor):
    return torch.zeros(0) if tensor is None else tensor.detach().clone()


def descending(loss_of):
    """A function that makes the step of a model and its optimizer."""

    def step_of(model, optimizer):
        def step(x):
            optimizer.zero_grad()
            loss = loss_of(model, x)
            loss.backward()
            optimizer.step()
            return loss

        return step

    return step_of


def mean_square(model, x):
    return model(x).square().mean()


def train(make, device, graphed, batches, told, step_of):
    torch.manual_seed(0)
    model = make().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = step_of(model, optimizer)
    if graphed:
        step = pianola.graphed(step, on_fallback=told.append)
    seen = []
    for x in batches:
        loss = step(x.to(device))
        kept = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters())]
        kept += [state[name] for state in optimizer.state.values() for name in ("step", "exp_avg")]
        seen.append([bits_of(one) for one in (loss, *kept)])
    seen.append([torch.rand(3, device=device)])
    return seen, step, model


def assert_alike(make, device, batches, told=None, step_of=descending(mean_square)):
    expected, _, _ = train(make, device, False, batches, [], step_of)
    actual, step, model = train(make, device, True, batches, [] if told is None else told, step_of)
    for i, (ours, eager) in enumerate(zip(actual, expected)):
        assert len(ours) == len(eager)
        for one, other in zip(ours, eager):
            assert_same(f"call {i}", one, other)
    return step, model


def expect_eager(make, device, said, step_of=descending(mean_square), count=30):
    told = []
    step, _ = assert_alike(make, device, [batch(i) for i in range(count)], told, step_of)
    signature = step.info().signatures[0]
    assert signature.state == "eager" and not step.info().parts
    assert len(told) == 1 and said in told[0], told
