"""Training steps with one read of a value: @pianola.graphed with the read in a part that stays eager, and with a decision by the value
as it stands, against two graphs of torch's that are made and launched by hand; and what a part costs the host.

All train alike, bit for bit, and read the same values.
"""

import dataclasses
from typing import Callable

import measuring
import models
import pianola
import torch
from measuring import alternate, case, check_equal, series
from torch.nn import functional

OURS = "@pianola.graphed, the read in pianola.eager"
DECIDING = "@pianola.graphed, a decision by the value"
HAND = "two torch.cuda.graph, the read between them"
EAGER = "eager Python"
UNREAD = "@pianola.graphed, without the read"

LAYERS, WIDTH, BATCH = 16, 64, 32
LEARNING_RATE = 1e-5
CHECKED = 10
ITERATIONS, BURST = 40, 10
PARTS = 8  # of which the cost of one is the mean


class Training:
    """A model, its optimizer, and where the step reads: `read(values)` is called there."""

    def __init__(self, device):
        self.model = models.linear_chain(device, LAYERS, WIDTH)
        self.first, self.second = self.model[:LAYERS // 2], self.model[LAYERS // 2:]
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=LEARNING_RATE, fused=True, capturable=device != "cpu")
        self.x, self.y = models.fixed_batch(device, 2, BATCH, WIDTH).unbind()
        self.loss, self.seen = None, []

    def read(self, value):
        self.seen.append(value.item())

    def decide(self, value):
        if value.item() > 1e9:
            raise FloatingPointError("it diverges")

    def state(self):
        return [self.loss.detach(), *[p.detach() for p in self.model.parameters()], torch.tensor(self.seen[-1])]


# --- Where the step reads ---

FORWARD, BETWEEN, HOOK, BEHIND = PLACES = (
    "in the forward pass", "between forward and backward passes", "in a hook of the backward pass", "behind the optimizer")  # fmt: skip


def step_of(t, place, read):
    """As people write it."""

    def step(x, y):
        t.optimizer.zero_grad()
        hidden = t.first(x)
        if place == FORWARD:
            read(hidden.detach().abs().max())
        if place == HOOK:
            hidden.register_hook(lambda gradient: read(gradient.abs().max()))
        loss = functional.mse_loss(t.second(hidden), y)
        if place == BETWEEN:
            read(loss.detach())
        loss.backward()
        t.optimizer.step()
        if place == BEHIND:
            read(loss.detach())
        return loss

    return step


def begin_by_hand(t, place):
    """What comes before the read: the value, and what the rest needs."""
    hidden = t.first(t.x)
    if place == FORWARD:
        return hidden.detach().abs().max(), hidden
    loss = functional.mse_loss(t.second(hidden), t.y)
    if place == HOOK:
        parameters = list(t.second.parameters())
        gradient, *gradients = torch.autograd.grad(loss, [hidden, *parameters])
        for parameter, its in zip(parameters, gradients):
            parameter.grad = its
        return gradient.abs().max(), (hidden, gradient, loss)
    if place == BEHIND:
        loss.backward()
        t.optimizer.step()
    return loss.detach(), loss


def end_by_hand(t, place, kept):
    """What comes behind it; gives the loss."""
    if place == HOOK:
        hidden, gradient, loss = kept
        hidden.backward(gradient)
    else:
        loss = functional.mse_loss(t.second(kept), t.y) if place == FORWARD else kept
        loss.backward()
    t.optimizer.step()
    return loss


def eager_step(device, place):
    t = Training(device)
    step = step_of(t, place, t.read)

    def run():
        t.loss = step(t.x, t.y)

    return t, run


def our_step(device, place, reads=True):
    t = Training(device)
    part = pianola.eager(t.read) if reads else lambda value: None
    graphed = pianola.graphed(step_of(t, place, part), branches=0)

    def run():
        t.loss = graphed(t.x, t.y)

    return t, run, graphed


def deciding_step(device, place):
    t = Training(device)
    graphed = pianola.graphed(step_of(t, place, t.decide), branches=0)

    def run():
        t.loss = graphed(t.x, t.y)

    return t, run, graphed


def by_hand(device, place, warmup):
    """After as many eager steps as ours takes."""
    t, eager = eager_step(device, place)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warmup):
            eager()
    torch.cuda.current_stream().wait_stream(stream)
    x, y = t.x, t.y  # what a loader brings
    t.x, t.y = x.clone(), y.clone()
    t.optimizer.zero_grad()
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        value, kept = begin_by_hand(t, place)
    loss = kept
    if place != BEHIND:
        with torch.cuda.graph(second, pool=first.pool()):
            loss = end_by_hand(t, place, kept)

    def run():
        t.x.copy_(x)
        t.y.copy_(y)
        first.replay()
        t.seen.append(value.item())
        if place != BEHIND:
            second.replay()
        t.loss = loss

    return t, run


def reads_of(settings, place):
    device = settings.device
    reference, eager = eager_step(device, place)
    ours, our_run, graphed = our_step(device, place)
    unread, unread_run, _ = our_step(device, place, reads=False)
    contenders = {OURS: our_run, EAGER: eager, UNREAD: unread_run}
    deciding = None
    if place != HOOK:  # where no replay checks
        deciding, contenders[DECIDING], checking = deciding_step(device, place)
    for _ in range(CHECKED):
        for run in contenders.values():
            run()
        check_equal(f"{place}, {OURS}", ours.state(), reference.state())
        check_equal(f"{place}, {UNREAD}", [p.detach() for p in unread.model.parameters()],
                    [p.detach() for p in reference.model.parameters()])
        if deciding is not None:
            check_equal(f"{place}, {DECIDING}", [p.detach() for p in deciding.model.parameters()],
                        [p.detach() for p in reference.model.parameters()])
    if deciding is not None and not any(one.replays for one in checking.info().signatures):
        raise RuntimeError(f"{place}: a step that decides did not replay: {checking.info()}")
    replayed = sum(one.replays for one in graphed.info().signatures)
    if replayed < CHECKED - 4:
        raise RuntimeError(f"{place}: {replayed} of {CHECKED} steps were replays: {graphed.info()}")
    if device == "cuda":
        hand, contenders[HAND] = by_hand(device, place, warmup=CHECKED - 1)
        contenders[HAND]()
        check_equal(f"{place}, {HAND}", hand.state(), reference.state())
    iterations = settings.some(ITERATIONS)
    samples = alternate(contenders, iterations, BURST, settings.rounds)
    wall = series(samples, "wall")
    one = case(f"a read {place}: MLP {LAYERS} x {WIDTH}, batch {BATCH}, Adam", "time per step", iterations,
               HAND if HAND in wall else EAGER, wall)
    if HAND in wall:
        measuring.require_within(one, OURS, HAND, wall, 5)
        measuring.require_ratio(one, OURS, HAND, wall[OURS], wall[HAND], 1.02)
        if DECIDING in wall:
            measuring.require_ratio(one, DECIDING, HAND, wall[DECIDING], wall[HAND], 1.02)
    return one


# --- What a part costs the host ---


@dataclasses.dataclass
class Cost:
    title: str
    limit: float  # microseconds a part, beyond its own operations
    step: Callable  # (x, w, part) -> what it returns


def forward_only(x, w, part):
    x = x * w  # what a graph holds
    for _ in range(PARTS):
        x = part(x)
    return x


def with_backward(x, w, part):
    y = x * w
    for _ in range(PARTS):
        y = part(y)
    return torch.autograd.grad(y.sum(), w)[0]


def doubled(x):
    return x * 2


def costs_of(settings, cost):
    device = settings.device
    x = models.fixed_batch(device, BATCH, WIDTH)
    w = torch.ones(WIDTH, device=device, requires_grad=True)
    gradient = torch.ones_like(x)
    leaf = x.clone().requires_grad_()

    def alone():
        """The operations of the parts, called by themselves."""
        if cost.step is forward_only:
            for _ in range(PARTS):
                doubled(x)
        else:
            for _ in range(PARTS):
                torch.autograd.grad(doubled(leaf), leaf, gradient)

    with torch.set_grad_enabled(cost.step is with_backward):
        parts, plain = (pianola.graphed(lambda x, part=part: cost.step(x, w, part), branches=0)
                        for part in (pianola.eager(doubled), doubled))
        for _ in range(CHECKED):
            check_equal(cost.title, [parts(x)], [cost.step(x, w, doubled)])
            plain(x)
        contenders = {f"{PARTS} parts that stay eager": lambda: parts(x), "the same in one graph": lambda: plain(x),
                      "the operations of the parts alone": alone}
        iterations = settings.some(ITERATIONS)
        samples = alternate(contenders, iterations, BURST, settings.rounds)
    host = series(samples, "host")
    one = case(f"{PARTS} parts, {cost.title}", "host time per call", iterations, "the same in one graph", host)
    with_parts, in_graph, by_themselves = (measuring.statistics.median(samples) for samples in host.values())
    each = (with_parts - in_graph - by_themselves) / PARTS
    measuring.require(one, f"a part beyond its own operations: at most {cost.limit:g} us", each, cost.limit, each <= cost.limit)
    return one


def run(settings):
    for place in PLACES:
        yield reads_of(settings, place)
    for cost in (Cost("forward only", 12, forward_only), Cost("forward and backward", 50, with_backward)):
        yield costs_of(settings, cost)
