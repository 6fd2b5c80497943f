"""Programs whose reads change from call to call, trained beside eager."""

import gc
import weakref

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


def assert_freed(make, device):
    """Of a module whose `step` is graphed nothing is held, however far its calls were looked at."""
    for count in (5, 6, 8, STEPS):
        net = make().to(device)
        for i in range(count):
            net.step(batch(i).to(device))
        alive = weakref.ref(net)
        del net
        gc.collect()
        assert alive() is None, f"after {count} calls"


def dispatch(x, weights, chosen, experts):
    """Each token goes to one expert; the host counts."""
    order = chosen.argsort(stable=True)
    counts = torch.bincount(chosen, minlength=len(experts)).tolist()
    pieces = [expert(piece) for expert, piece in zip(experts, x[order].split(counts))]
    return torch.zeros_like(x).index_copy(0, order, torch.cat(pieces) * weights[order, None])


class Moe(nn.Module):
    """Keeps how much each expert was asked for, which no part may: so the module is none."""

    def __init__(self, width=8, count=4):
        super().__init__()
        self.gate = nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(width, 16), nn.GELU(), nn.Linear(16, width)) for _ in range(count))
        self.register_buffer("load", torch.zeros(count))

    def forward(self, x):
        probabilities = self.gate(x).softmax(-1)
        weights, chosen = probabilities.max(-1)
        self.load += probabilities.detach().mean(0)
        return x + self.route(x, weights, chosen)

    def route(self, x, weights, chosen):
        return dispatch(x, weights, chosen, self.experts)


def network(kind=Moe):
    return lambda: nn.Sequential(nn.Linear(8, 8), kind(), nn.LayerNorm(8), kind(), nn.Dropout(0.1))


class Sparse(Moe):
    """A block as in libraries of models: top-k routing in a method, which finds all in the module."""

    def forward(self, hidden):
        scores, chosen = self.gate(hidden).softmax(-1).topk(2)
        self.load += 1.0
        return hidden + self._mix(hidden, scores, chosen=chosen)

    def _mix(self, hidden, scores, chosen):
        mixed = torch.zeros_like(hidden)
        mask = nn.functional.one_hot(chosen, num_classes=len(self.experts)).permute(2, 1, 0)
        for number, expert in enumerate(self.experts):
            place, token = torch.where(mask[number])
            mixed.index_add_(0, token, expert(hidden[token]) * scores[token, place, None])
        return mixed


def expect_parts(make, device, *parts, step_of=descending(mean_square)):
    told = []
    step, model = assert_alike(make, device, [batch(i) for i in range(STEPS)], told, step_of)
    signature = step.info().signatures[0]
    assert signature.replays >= 20 and not told, (signature.reason, told, step.found.note)
    assert len(step.info().parts) == len(parts), step.info().parts
    for part, said in zip(step.info().parts, parts):
        assert part.startswith(said), part
    return step
