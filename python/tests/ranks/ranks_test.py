"""DistributedDataParallel on two ranks: it replays in whole steps and is equal to eager; in parts it is eager or refused by name."""

import pianola
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from two_ranks import RANKS, STEPS, WARMUP, Lanes, batch, device, found_by_ranks, make_model, of_both, refusal, refused


def gradients(model):
    return [p.grad.clone() for p in model.parameters()]


def train(forward, model, steps=STEPS):
    """The gradients of all steps."""
    found = []
    for step in range(steps):
        model.zero_grad()
        forward(batch(step)).square().mean().backward()
        found.append(gradients(model))
    return found


def eager_gradients(steps=STEPS):
    model = DistributedDataParallel(make_model())
    return train(model, model, steps)


def right(found):
    """How many steps have eager's gradients."""
    expected = eager_gradients(len(found))
    return sum(all(torch.equal(a, b) for a, b in zip(one, other)) for one, other in zip(found, expected))


# --- Cases: each returns what its test looks at ---


def ddp_handed_to_callables():
    model = DistributedDataParallel(make_model())
    refused = refusal(lambda: pianola.make_graphed_callables(model, (batch(0),), num_warmup_iters=11))
    return refused, right(train(model, model))


def ddp_inside_of_a_function_handed_to_callables():
    model = DistributedDataParallel(make_model())
    return refusal(lambda: pianola.make_graphed_callables(lambda x: model(x), (batch(0),), num_warmup_iters=11))


def ddp_around_callables_that_accumulate():
    graphed = pianola.make_graphed_callables(make_model(), (batch(0),))
    train(graphed, graphed, 2)
    wrapped = DistributedDataParallel(graphed)
    refused = refusal(lambda: wrapped(batch(0)))
    with torch.no_grad():
        return refused, torch.equal(wrapped(batch(0)), make_model()(batch(0)))


def ddp_around_callables_that_fall_back():
    graphed = pianola.make_graphed_callables(make_model(), (batch(0),), on_mismatch="eager")
    wrapped = DistributedDataParallel(graphed)
    return right(train(wrapped, wrapped))


def ddp_around_callables_that_clone():
    graphed = pianola.make_graphed_callables(make_model(), (batch(0),), grad="clone")
    wrapped = DistributedDataParallel(graphed)
    return right(train(wrapped, wrapped, 20))


def callables_of_the_module_inside_of_ddp():
    model = make_model()
    wrapped = DistributedDataParallel(model)
    pianola.make_graphed_callables(model, (batch(0),))
    return right(train(wrapped, wrapped))


def graphed_module_inside_of_ddp():
    model = pianola.graphed(make_model(), warmup=2)
    wrapped = DistributedDataParallel(model)
    found = right(train(wrapped, wrapped))
    return found, sum(one.replays for one in model.forward.info().signatures)


def ddp_around_a_graphed_module_that_replays():
    model = pianola.graphed(make_model(), warmup=2)
    train(model, model, 5)
    wrapped = DistributedDataParallel(model)
    found = right(train(wrapped, wrapped))
    return found, sum(one.replays for one in model.forward.info().signatures)


class NormedNet(nn.Module):
    """Has buffers, which DistributedDataParallel sends to all ranks."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)).to(device())

    def forward(self, x):
        return self.layers(x)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def train_ddp(make, optimizer, graphed, accumulate=1, steps=STEPS, hook=None, **options):
    """(the losses, and the state at the end; what pianola.graphed made)"""
    model = DistributedDataParallel(make(), **options)
    if hook is not None:
        model.register_comm_hook(None, hook)
    one = optimizer(model)

    def step(*microbatches):
        one.zero_grad()
        for x in microbatches[:-1]:
            with model.no_sync():
                model(x).square().mean().backward()
        loss = model(microbatches[-1]).square().mean()
        loss.backward()
        one.step()
        return loss.detach()

    call = pianola.graphed(step, on_fallback=lambda text: None) if graphed else step
    losses = [call(*(batch(accumulate * number + i) for i in range(accumulate))) for number in range(steps)]
    return [*losses, *model.state_dict().values(), *gradients(model)], call


def third_of_the_sum(state, bucket):
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda future: future.value()[0] / 3)


DDP = {
    "as it comes": (make_model, sgd, {}),
    "with AdamW": (make_model, adamw, {}),
    "with buffers": (NormedNet, sgd, {}),
    "with bucket views": (make_model, sgd, {"gradient_as_bucket_view": True}),
    "with small buckets": (make_model, sgd, {"bucket_cap_mb": 0.0001}),
    "with accumulation": (make_model, sgd, {"accumulate": 3}),
    "with a hook that compresses": (make_model, sgd, {"hook": fp16_compress_hook}),
}


def ddp_in_a_graphed_step():
    """For each kind: whether all was equal, how many calls replayed, and why others did not."""
    found = {}
    for name, (make, optimizer, options) in DDP.items():
        expected, _ = train_ddp(make, optimizer, False, **options)
        values, graphed = train_ddp(make, optimizer, True, **options)
        known = graphed.info().signatures
        equal = all(torch.equal(a, b) for a, b in zip(values, expected, strict=True))
        found[name] = equal, sum(one.replays for one in known), [one.reason for one in known if one.reason]
    return found


def ddp_that_finds_unused_parameters(**options):
    options = options or {"find_unused_parameters": True}
    expected, _ = train_ddp(make_model, sgd, False, **options)
    values, graphed = train_ddp(make_model, sgd, True, **options)
    reasons = [one.reason for one in graphed.info().signatures if one.reason]
    return all(torch.equal(a, b) for a, b in zip(values, expected, strict=True)), reasons


def ddp_with_a_hook_that_makes_a_tensor():
    """The reducer keeps it as its bucket."""
    return ddp_that_finds_unused_parameters(hook=third_of_the_sum)


def ddp_with_a_static_graph():
    """It looks for unused parameters in its first iteration."""
    return ddp_that_finds_unused_parameters(static_graph=True)


def ddp_graphed_on_one_rank_alone():
    """A rank that replays does for the others what it does eagerly."""
    expected, _ = train_ddp(make_model, adamw, False)
    values, graphed = train_ddp(make_model, adamw, dist.get_rank() == 0)
    return all(torch.equal(a, b) for a, b in zip(values, expected, strict=True))


def ddp_in_an_iteration():
    model, reasons = DistributedDataParallel(make_model()), []

    def step(microbatches):
        loss = model(microbatches[0]).square().mean()
        loss.backward()
        return loss

    iteration = pianola.FullIteration(step, warmup=2, eager_fallback=True, on_fallback=reasons.append)
    found = []
    for number in range(STEPS):
        model.zero_grad()
        iteration([batch(number)])
        found.append(gradients(model))
    return right(found), reasons, sum(one.replays for one in iteration.info().signatures)


def ddp_in_a_capture():
    model = DistributedDataParallel(make_model())
    x, graph = batch(0).clone(), pianola.Graph(device())

    def step():
        model.zero_grad()
        model(x).square().mean().backward()

    early = refusal(lambda: graph.capture(step)) if device().type == "cuda" else None
    graph.capture(step, warmup=11)
    found = []
    for number in range(STEPS):
        x.copy_(batch(number))
        graph.replay()
        found.append(gradients(model))
    return right(found), early


def ddp_in_lanes():
    """Buckets of a layer each, which are reduced while the next is computed."""
    model = DistributedDataParallel(make_model(), bucket_cap_mb=0.0001, gradient_as_bucket_view=True)
    x, graph = batch(0).clone(), pianola.Graph(device())

    def step():
        model.zero_grad(set_to_none=False)
        model(x).square().mean().backward()

    graph.capture(step, warmup=12, branches=4)
    found = []
    for number in range(STEPS):
        x.copy_(batch(number))
        graph.replay()
        found.append(gradients(model))
    return right(found), Lanes(graph.info().branches)


def the_audit():
    model = DistributedDataParallel(make_model())

    def reduce(x):
        dist.all_reduce(x * 2)

    reports = (
        pianola.audit(lambda x: model(x).sum().backward(), batches=[(batch(0),)], trial=False),
        pianola.audit(reduce, batches=[(batch(0),)], trial=True),
    )
    return [[(one.rule, one.what) for one in report.findings] for report in reports]


CASES = (
    ddp_handed_to_callables,
    ddp_inside_of_a_function_handed_to_callables,
    ddp_around_callables_that_accumulate,
    ddp_around_callables_that_fall_back,
    ddp_around_callables_that_clone,
    callables_of_the_module_inside_of_ddp,
    graphed_module_inside_of_ddp,
    ddp_around_a_graphed_module_that_replays,
    ddp_in_a_graphed_step,
    ddp_that_finds_unused_parameters,
    ddp_with_a_hook_that_makes_a_tensor,
    ddp_with_a_static_graph,
    ddp_graphed_on_one_rank_alone,
    ddp_in_an_iteration,
    ddp_in_a_capture,
    ddp_in_lanes,
    the_audit,
)
ON_THE_CPU = ()


@pytest.fixture(scope="module", params=["cpu", "cuda"])
def ranks(request, tmp_path_factory):
    return found_by_ranks(__name__, request.param, tmp_path_factory)


def test_ddp_handed_to_callables_is_refused_and_goes_on(ranks):
    for result, steps in of_both(ranks, ddp_handed_to_callables):
        refused(result, "UsageError", "DistributedDataParallel", "graph the module inside of it")
        assert steps == STEPS
    for result in of_both(ranks, ddp_inside_of_a_function_handed_to_callables):
        refused(result, "CaptureError", "DistributedDataParallel.forward")


def test_ddp_put_around_callables_later_is_refused_at_the_next_call(ranks):
    for result, same in of_both(ranks, ddp_around_callables_that_accumulate):
        refused(result, "GuardError", "its gradient is watched since the capture", "DistributedDataParallel", rule=None)
        assert same
    assert of_both(ranks, ddp_around_callables_that_fall_back) == [STEPS] * RANKS


def test_ddp_around_callables_that_clone_and_callables_inside_of_ddp_are_right(ranks):
    assert of_both(ranks, ddp_around_callables_that_clone) == [20] * RANKS
    assert of_both(ranks, callables_of_the_module_inside_of_ddp) == [STEPS] * RANKS


@pytest.mark.parametrize("case", [graphed_module_inside_of_ddp, ddp_around_a_graphed_module_that_replays])
def test_a_graphed_module_and_ddp(case, ranks):
    for steps, replays in of_both(ranks, case):
        assert steps == STEPS and replays > STEPS // 2


@pytest.mark.parametrize("kind", DDP)
def test_ddp_replays_in_a_graphed_step(kind, ranks):
    for found in of_both(ranks, ddp_in_a_graphed_step):
        equal, replays, reasons = found[kind]
        assert equal and replays >= STEPS - WARMUP[ranks[0]["device"]], reasons


def test_ddp_replays_in_an_iteration_and_in_a_graph(ranks):
    for steps, reasons, replays in of_both(ranks, ddp_in_an_iteration):
        assert steps == STEPS and not reasons and replays >= STEPS - WARMUP[ranks[0]["device"]]
    for steps, early in of_both(ranks, ddp_in_a_capture):
        assert steps == STEPS
        if ranks[0]["device"] == "cuda":
            refused(early, "CaptureError", "times its first ten iterations", "warmup=11", rule="PG1104")


def test_ddp_replays_in_lanes(ranks):
    for steps, branches in of_both(ranks, ddp_in_lanes):
        assert steps == STEPS and branches.proved_pairs > 0 and branches.lanes > 1
        if ranks[0]["device"] == "cuda":
            assert branches.rebuilt and "a trial would communicate" in branches.untimed, branches


@pytest.mark.parametrize("case", [ddp_that_finds_unused_parameters, ddp_with_a_static_graph])
def test_ddp_that_finds_unused_parameters_stays_eager(case, ranks):
    for equal, reasons in of_both(ranks, case):
        rules = ("PG201", "PG103") if ranks[0]["device"] == "cuda" else ("PG101",)  # it copies to the host, and computes there
        assert equal and reasons and all(any(rule in reason for rule in rules) for reason in reasons), reasons


def test_ddp_with_a_hook_that_makes_a_tensor_stays_eager(ranks):
    for equal, reasons in of_both(ranks, ddp_with_a_hook_that_makes_a_tensor):
        assert equal and reasons and all("PG802" in reason for reason in reasons), reasons


def test_ddp_may_be_graphed_on_one_rank_alone(ranks):
    assert of_both(ranks, ddp_graphed_on_one_rank_alone) == [True] * RANKS


def test_the_audit_says_so(ranks):
    for ddp, reduce in of_both(ranks, the_audit):
        assert not any(rule == "PG1106" for rule, what in ddp + reduce), (ddp, reduce)
