"""fully_shard (FSDP2) on two ranks: whole steps replay and are equal to eager."""

import functools

import pianola
import pytest
import torch
from torch import nn

from two_ranks import RANKS, STEPS, batch, device, found_by_ranks, of_both, refusal, refused


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        return x + self.layers(self.norm(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block(6) for _ in range(3))
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def make_mesh():
    """Of this device: torch would take a GPU that it sees."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device().type, (RANKS,))


def sharded(**options):
    from torch.distributed.fsdp import fully_shard

    model, mesh = Net().to(device()), make_mesh()
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def sharded_as_a_whole():
    from torch.distributed.fsdp import fully_shard

    return fully_shard(Net().to(device()), mesh=make_mesh())


def kept_after_forward():
    return sharded(reshard_after_forward=False)


def in_bfloat16():
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return sharded(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def fused_adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)


def train(make, optimizer, wrap, clip=None, schedule=False, accumulate=1):
    """(losses, weights and gradients of all steps; what is returned by `wrap`)"""
    model = make()
    optimizer = optimizer(model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS) if schedule else None

    def step(*microbatches):
        optimizer.zero_grad()
        for i, x in enumerate(microbatches):
            model.set_requires_gradient_sync(i == len(microbatches) - 1)
            loss = model(x).float().square().mean()
            loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        return loss.detach()

    step, found = wrap(step), []
    for number in range(STEPS):
        found.append(step(*(batch(accumulate * number + i) for i in range(accumulate))).clone())
        found += [p.grad.to_local().clone() for p in model.parameters()]
        if scheduler is not None:
            scheduler.step()
    return found + [p.to_local().clone() for p in model.parameters()], step


WAYS = {
    "as a whole": (sharded_as_a_whole, sgd, {}),
    "by blocks": (sharded, sgd, {}),
    "kept after forward": (kept_after_forward, sgd, {}),
    "in bfloat16": (in_bfloat16, sgd, {}),
    "with AdamW": (sharded, adamw, {}),
    "with AdamW and a schedule": (sharded, adamw, {"schedule": True}),
    "with fused AdamW": (sharded, fused_adamw, {}),
    "with clipping": (sharded, sgd, {"clip": 0.1}),
    "with accumulation": (sharded, sgd, {"accumulate": 2}),
    "in lanes": (sharded, sgd, {"branches": 4}),
}


def steps_of_training():
    found = {}
    for name, (make, optimizer, options) in WAYS.items():
        options = dict(options)
        wrap = functools.partial(pianola.graphed, branches=options.pop("branches", 1))
        expected, _ = train(make, optimizer, lambda step: step, **options)
        values, graphed = train(make, optimizer, wrap, **options)
        known = graphed.info().signatures
        equal = all(torch.equal(a, b) for a, b in zip(values, expected, strict=True))
        found[name] = equal, sum(one.replays for one in known), [one.reason for one in known if one.reason], sum(one.graphs for one in known)
    return found


def train_as_the_loop_says(wrap):
    """Gradients are summed over the ranks in each third call alone."""
    model = sharded()
    optimizer = sgd(model)

    def micro(x):
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    micro, values = wrap(micro), []
    for number in range(3 * STEPS):
        model.set_requires_gradient_sync(number % 3 == 2)
        values.append(micro(batch(number)).clone())
        if number % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
    return values + [p.to_local().clone() for p in model.parameters()], micro


def switched_between_steps():
    values, graphed = train_as_the_loop_says(pianola.graphed)
    expected, _ = train_as_the_loop_says(lambda step: step)
    known = graphed.info().signatures
    return all(torch.equal(a, b) for a, b in zip(values, expected, strict=True)), sum(one.replays for one in known)


def inference():
    model, twin = sharded(), sharded()

    def step(x):
        with torch.no_grad():
            return model(x)

    graphed = pianola.graphed(step)
    equal = 0
    for number in range(STEPS):
        with torch.no_grad():
            equal += torch.equal(graphed(batch(number)), twin(batch(number)))
    known = graphed.info().signatures
    return equal, sum(one.replays for one in known), [one.reason for one in known if one.reason]


def a_capture():
    model, x, graph = sharded(), batch(0).clone(), pianola.Graph(device())
    twin = sharded()

    def backward(model, x):
        model.zero_grad()
        model(x).square().mean().backward()

    graph.capture(lambda: backward(model, x), warmup=3)
    equal = 0
    for number in range(STEPS):
        x.copy_(batch(number))
        graph.replay()
        backward(twin, batch(number))
        equal += all(torch.equal(a.grad.to_local(), b.grad.to_local()) for a, b in zip(model.parameters(), twin.parameters()))
    return equal


def a_part():
    model = sharded()
    return refusal(lambda: pianola.make_graphed_callables(lambda x: model(x), (batch(0),)))


CASES = (steps_of_training, switched_between_steps, inference, a_capture, a_part)
ON_THE_CPU = ()


@pytest.fixture(scope="module", params=["cpu", "cuda"])
def ranks(request, tmp_path_factory):
    return found_by_ranks(__name__, request.param, tmp_path_factory)


@pytest.mark.parametrize("way", WAYS)
def test_sharded_parameters_are_trained_in_a_graphed_step(way, ranks):
    for found in of_both(ranks, steps_of_training):
        equal, replays, reasons, graphs = found[way]
        assert equal and replays >= STEPS // 2 and not reasons and graphs == 1, (equal, replays, reasons, graphs)


def test_what_the_loop_switches_between_steps_counts(ranks):
    for equal, replays in of_both(ranks, switched_between_steps):
        assert equal and replays >= STEPS, replays


def test_sharded_parameters_replay_in_inference(ranks):
    for equal, replays, reasons in of_both(ranks, inference):
        assert equal == STEPS and replays >= STEPS // 2 and not reasons, (equal, replays, reasons)


def test_a_capture_with_sharded_parameters_replays(ranks):
    assert of_both(ranks, a_capture) == [STEPS] * RANKS


def test_a_part_with_sharded_parameters_is_refused(ranks):
    for result in of_both(ranks, a_part):
        refused(result, "CaptureError", "graph the whole step")
