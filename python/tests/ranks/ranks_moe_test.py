"""Experts on several ranks: how many tokens go to each the host reads, and tells the other ranks. Written as tutorials do; the dispatch
stays eager, the rest of the step is graphed, forward and backward. Equal to eager on each rank over fifty steps."""

import pianola
import pytest
import torch
import torch.distributed as dist
from torch import nn
from two_ranks import RANKS, batch, device, found_by_ranks, of_both

LONG = 50
EXPERTS, WIDTH = 4, 16  # of all ranks; each has EXPERTS / RANKS


class AllToAll(torch.autograd.Function):
    """Rows to other ranks; their gradients come back the same way."""

    @staticmethod
    def forward(ctx, rows, received, sent):
        ctx.received, ctx.sent = received, sent
        result = rows.new_empty((sum(received), *rows.shape[1:]))
        dist.all_to_all_single(result, rows.contiguous(), received, sent)
        return result

    @staticmethod
    def backward(ctx, gradient):
        result = gradient.new_empty((sum(ctx.sent), *gradient.shape[1:]))
        dist.all_to_all_single(result, gradient.contiguous(), ctx.sent, ctx.received)
        return result, None, None


class ExpertParallel(nn.Module):
    """Top-1 routing; an expert gets the tokens of all ranks, however many they are."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        here = EXPERTS // RANKS
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)) for _ in range(here)
        )

    def forward(self, x):
        weight, expert = self.router(x).softmax(-1).max(-1)
        return x + self.dispatch(x, expert) * weight[:, None]

    def dispatch(self, x, expert):
        order = expert.argsort(stable=True)
        counts = torch.bincount(expert, minlength=EXPERTS)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts)
        sent = counts.view(RANKS, -1).sum(1).tolist()
        received = arriving.view(RANKS, -1).sum(1).tolist()
        rows = AllToAll.apply(x[order], received, sent)
        local = torch.arange(len(self.experts), device=x.device).repeat(RANKS).repeat_interleave(arriving)
        result = torch.zeros_like(rows)
        for number, one in enumerate(self.experts):
            mine = (local == number).nonzero().flatten()
            result = result.index_add(0, mine, one(rows[mine]))
        back = AllToAll.apply(result, sent, received)
        return torch.zeros_like(x).index_copy(0, order, back)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, WIDTH)
        self.blocks = nn.ModuleList(ExpertParallel() for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.last = nn.Linear(WIDTH, 3)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        for norm, block in zip(self.norms, self.blocks):
            x = block(norm(x))
        return self.last(x)


def make_model():
    """Experts are a rank's own; the rest is the same on all."""
    torch.manual_seed(0)
    model = Model().to(device())
    torch.manual_seed(1 + dist.get_rank())
    for block in model.blocks:
        for parameter in block.experts.parameters():
            nn.init.normal_(parameter, std=0.2)
    return model


def shared(model):
    return [parameter for name, parameter in model.named_parameters() if ".experts." not in name]


def nothing():
    pass


def train(graph):
    """`graph` is given the model, the step, and its two halves; it gives what to call, and what behind it. Returns all losses and the
    parameters at the end."""
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def gradients(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    def update():
        for parameter in shared(model):
            dist.all_reduce(parameter.grad)
        torch.nn.utils.clip_grad_norm_(shared(model), 1.0)
        optimizer.step()

    def step(x):
        loss = gradients(x)
        update()
        return loss

    call, behind = graph(model, step, gradients, update)
    losses = []
    for number in range(LONG):
        losses.append(call(batch(number)).clone())
        behind()
    return losses + [parameter.detach().clone() for parameter in model.parameters()], call


def compared(graph):
    """Whether all is equal, replays, and why calls stayed eager."""
    expected, _ = train(lambda model, step, gradients, update: (step, nothing))
    reasons = []
    actual, call = train(lambda *all: graph(*all, reasons.append))
    replays = sum(one.replays for one in call.info().signatures) if hasattr(call, "info") else 0
    return len(actual) == len(expected) and all(map(torch.equal, actual, expected)), replays, reasons


def mark(model):
    for block in model.blocks:
        block.dispatch = pianola.eager(block.dispatch)


def dispatch_marked():
    """The dispatch is a part that stays eager; the graph goes on behind it. Gradients are exchanged outside."""

    def graph(model, step, gradients, update, told):
        mark(model)
        return pianola.graphed(gradients, warmup=3, on_fallback=told), update

    return compared(graph)


def all_in_one_step():
    """The same, with the exchange of gradients and the optimizer in the graph."""

    def graph(model, step, gradients, update, told):
        mark(model)
        return pianola.graphed(step, warmup=3, on_fallback=told), nothing

    return compared(graph)


def nothing_marked():
    return compared(lambda model, step, gradients, update, told: (pianola.graphed(step, warmup=3, on_fallback=told), nothing))


def layers_around_the_experts():
    """Routers, norms and the ends of the model are graphs; the loop is eager."""
    kept = []

    def graph(model, step, gradients, update, told):
        parts = [model.first, model.last, *model.norms, *(block.router for block in model.blocks)]
        kept.append(pianola.graph_layers(model, parts, warmup=3, on_fallback=told))
        return step, nothing

    equal, _, reasons = compared(graph)
    replays = [sum(one.replays for one in kept[0][name].info().signatures) for name in kept[0].names]
    return equal, min(replays), reasons


CASES = (dispatch_marked, all_in_one_step, nothing_marked, layers_around_the_experts)
ON_THE_CPU = ()

# --- Tests ---


@pytest.fixture(scope="module", params=["cpu", "cuda"])
def ranks(request, tmp_path_factory):
    return found_by_ranks("ranks_moe_test", request.param, tmp_path_factory)


@pytest.mark.parametrize("case", [dispatch_marked, layers_around_the_experts], ids=lambda case: case.__name__)
def test_experts_of_two_ranks_train_as_eager(case, ranks):
    for equal, replays, reasons in of_both(ranks, case):
        assert equal and replays >= LONG - 8 and reasons == [], (equal, replays, reasons)


def test_dispatch_that_is_not_marked_stays_eager_and_says_why(ranks):
    for equal, replays, reasons in of_both(ranks, nothing_marked):
        assert equal and replays == 0 and len(reasons) == 1, (equal, replays, reasons)


def test_a_step_that_sends_what_its_parts_gave_stays_eager_on_the_cpu(ranks):
    for equal, replays, reasons in of_both(ranks, all_in_one_step):
        if ranks[0]["device"] == "cuda":
            assert equal and replays >= LONG - 8 and reasons == [], (equal, replays, reasons)
        else:
            assert equal and replays == 0, (equal, replays, reasons)
            assert len(reasons) == 1 and "its recording would send what these parts gave in another call" in reasons[0]
