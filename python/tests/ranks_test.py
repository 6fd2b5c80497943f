"""Two ranks, by Gloo on the CPU and by NCCL on two GPUs: collectives and DistributedDataParallel replay in whole steps and are equal
to eager; in parts they are eager or refused by name. One pair of processes runs every case."""

import datetime
import os
import pickle
import traceback

import numpy
import pianola
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("torch has no gloo", allow_module_level=True)

RANKS, STEPS = 2, 16
WARMUP = {"cpu": 4, "cuda": 12}  # calls that may go by before a step with DistributedDataParallel replays
DEVICE = torch.device("cpu")  # of this rank


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(DEVICE)


def batch(step):
    """Another one on each rank."""
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * step + dist.get_rank())).to(DEVICE)


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


def refusal(work):
    try:
        work()
    except pianola.Error as error:
        return (type(error).__name__, str(error))
    return None


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
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)).to(DEVICE)

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
    x, graph = batch(0).clone(), pianola.Graph(DEVICE)

    def step():
        model.zero_grad()
        model(x).square().mean().backward()

    early = refusal(lambda: graph.capture(step)) if DEVICE.type == "cuda" else None
    graph.capture(step, warmup=11)
    found = []
    for number in range(STEPS):
        x.copy_(batch(number))
        graph.replay()
        found.append(gradients(model))
    return right(found), early


class Lanes:
    """What is told of a graph's branches, as it can be handed to another process."""

    def __init__(self, info):
        self.rebuilt, self.reason, self.untimed = info.rebuilt, info.reason, info.untimed
        self.lanes, self.proved_pairs = info.lanes, info.proved_pairs

    def __repr__(self):
        return str(vars(self))


def ddp_in_lanes():
    """Buckets of a layer each, which are reduced while the next is computed."""
    model = DistributedDataParallel(make_model(), bucket_cap_mb=0.0001, gradient_as_bucket_view=True)
    x, graph = batch(0).clone(), pianola.Graph(DEVICE)

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


def collectives_of_two_groups_in_lanes():
    other = dist.new_group(list(range(RANKS)))

    def by_two_groups(x):
        y, z = x * 2, x.sin()
        works = [dist.all_reduce(y, async_op=True), dist.all_reduce(z, group=other, async_op=True)]
        v, w = x.exp(), x.cos()
        for _ in range(20):
            v, w = v.sin(), w.cos()
        for work in works:
            work.wait()
        dist.all_reduce(w, group=other)
        dist.all_reduce(z)
        return y + z, v, w

    graph, x, results = pianola.Graph(DEVICE), batch(0).clone(), []
    graph.capture(lambda: results.append(by_two_groups(x)), warmup=1, branches=4)
    found = collectives(by_two_groups, branches=4), Lanes(graph.info().branches)
    graph.reset()
    dist.destroy_process_group(other)
    return found


def an_error_in_the_capture():
    """Other ranks have taken part in it by then."""
    table = torch.arange(4.0, device=DEVICE)

    def step(x, index):
        y = x * 2
        dist.all_reduce(y)
        return y + table[index]

    graphed, good = pianola.graphed(step, warmup=2), torch.tensor([0, 1, 2, 3, 0, 1], device=DEVICE)
    for number in range(2):
        graphed(batch(number), good)
    refused = refusal(lambda: graphed(batch(2), good + 7))
    return refused, torch.equal(graphed(batch(3), good), step(batch(3), good))


def collectives(step, **options):
    """Whether graphed is eager, how many calls replayed, and why others did not."""
    reasons = []
    graphed = pianola.graphed(step, warmup=3, on_fallback=reasons.append, **options)
    equal = 0
    for number in range(STEPS):
        one, other = graphed(batch(number)), step(batch(number))
        equal += all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    return equal, sum(one.replays for one in graphed.info().signatures), reasons


def all_reduced(x):
    y = x * 2
    dist.all_reduce(y)
    return (y + 1,)


def all_reduced_later(x):
    y, z = x * 2, x.sin()
    works = [dist.all_reduce(y, async_op=True), dist.all_reduce(z, op=dist.ReduceOp.MAX, async_op=True)]
    w = x.cos()
    for work in works:
        work.wait()
    return y, z, w


def called_back(x):
    y, out = x * 2, torch.empty_like(x)
    dist.all_reduce(y, async_op=True).get_future().then(lambda future: out.copy_(future.value()[0] * 3)).wait()
    return (out + 1,)


def known_by_two_names():
    """By two storages on the same memory, where numpy can."""
    array = numpy.zeros((4, 6), numpy.float32)
    mine, other = torch.from_numpy(array).to(DEVICE), torch.from_numpy(array).to(DEVICE)
    other = other if DEVICE.type == "cpu" else mine

    def by_two_names(x):
        mine.fill_(1).mul_(x.sum())
        dist.all_reduce(mine)
        return (other * 2,)

    return by_two_names


def gathered(x):
    whole = torch.empty(RANKS * x.shape[0], x.shape[1], device=x.device)
    dist.all_gather_into_tensor(whole, x.exp())
    parts = [torch.empty_like(x) for _ in range(RANKS)]
    dist.all_gather(parts, x + 1)
    return whole, *parts


def scattered(x):
    whole = torch.cat([x, x.sin()])
    part = torch.empty_like(x)
    dist.all_to_all_single(whole.clone(), whole)
    dist.all_to_all_single(part, x + 1)
    return whole, part


def sent_to_all(x):
    y = x * 3
    dist.broadcast(y, src=1)
    z = y + x
    dist.reduce(z, dst=0)
    return y, z


def the_collectives():
    steps = all_reduced, all_reduced_later, called_back, known_by_two_names(), gathered, scattered, sent_to_all
    return {step.__name__: collectives(step) for step in steps}


def a_bare_all_reduce_in_a_capture():
    x, graph, results = batch(0).clone(), pianola.Graph(DEVICE), []
    graph.capture(lambda: results.append(all_reduced(x)[0]), warmup=1)
    equal = 0
    for number in range(4):
        x.copy_(batch(number))
        graph.replay()
        equal += torch.equal(results[-1], all_reduced(batch(number))[0])
    return equal


def messages():
    """From one rank to another, with the host's waits."""

    def step(x):
        other, received = 1 - dist.get_rank(), torch.empty_like(x)
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, x * 2, other), dist.P2POp(dist.irecv, received, other)])
        for work in works:
            work.wait()
        return (received + 1,)

    return collectives(step)


def a_group_that_is_destroyed():
    """Its graphs go before it, or NCCL would wait for them."""
    group = dist.new_group(list(range(RANKS)))

    def step(x):
        y = x * 2
        dist.all_reduce(y, group=group)
        return y

    graphed = pianola.graphed(step, warmup=2)
    equal = sum(torch.equal(graphed(batch(number)), step(batch(number))) for number in range(6))
    x, graph = batch(0).clone(), pianola.Graph(DEVICE)
    graph.capture(lambda: step(x), warmup=1)
    (before,) = graphed.info().signatures
    dist.destroy_process_group(group)
    refused = refusal(graph.replay)
    if DEVICE.type == "cpu":  # where torch's own collective does no harm then
        graphed(batch(0))
    after = graphed.info().signatures[0]
    return equal, before.replays, after.replays, after.reason, refused


def a_collective_in_a_part():
    return refusal(lambda: pianola.make_graphed_callables(lambda x: all_reduced(x)[0], (batch(0),)))


def a_functional_collective():
    from torch.distributed._functional_collectives import all_reduce

    x = batch(0)
    return refusal(lambda: pianola.Graph(DEVICE).capture(lambda: all_reduce(x * 2, "sum", dist.group.WORLD) + 1))


def the_audit():
    model = DistributedDataParallel(make_model())

    def reduce(x):
        dist.all_reduce(x * 2)

    reports = (
        pianola.audit(lambda x: model(x).sum().backward(), batches=[(batch(0),)], trial=False),
        pianola.audit(reduce, batches=[(batch(0),)], trial=True),
    )
    return [[(one.rule, one.what) for one in report.findings] for report in reports]


def fully_sharded_parameters():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh, model, reasons = init_device_mesh(DEVICE.type, (RANKS,)), make_model(), []
    fully_shard(model, mesh=mesh)
    twin = make_model()
    graphed = pianola.graphed(lambda x: model(x), warmup=1, on_fallback=reasons.append)
    equal = sum(torch.equal(graphed(batch(number)), twin(batch(number))) for number in range(4))
    x = batch(0)
    return equal, reasons, refusal(lambda: pianola.Graph(DEVICE).capture(lambda: model(x)))


def distributed_tensors():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh, reasons = init_device_mesh(DEVICE.type, (RANKS,)), []
    graphed = pianola.graphed(lambda x: x * 2, warmup=1, on_fallback=reasons.append)
    full = torch.arange(8.0, device=DEVICE)
    equal = sum(
        torch.equal(graphed(distribute_tensor(full + n, mesh, [Shard(0)])).full_tensor(), (full + n) * 2) for n in range(4)
    )
    sample = distribute_tensor(full, mesh, [Shard(0)])
    return equal, reasons, refusal(lambda: pianola.make_graphed_callables(lambda x: x * 2, (sample,)))


CASES = {
    case.__name__: case
    for case in (
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
        ddp_with_a_static_graph,
        ddp_with_a_hook_that_makes_a_tensor,
        ddp_graphed_on_one_rank_alone,
        ddp_in_an_iteration,
        ddp_in_a_capture,
        ddp_in_lanes,
        collectives_of_two_groups_in_lanes,
        an_error_in_the_capture,
        the_collectives,
        a_bare_all_reduce_in_a_capture,
        messages,
        a_group_that_is_destroyed,
        a_collective_in_a_part,
        a_functional_collective,
        the_audit,
        fully_sharded_parameters,
        distributed_tensors,
    )
}


ON_THE_CPU = (an_error_in_the_capture,)  # a kernel's assertion ends the device's context


def run_rank(rank, folder, kind):
    global DEVICE
    torch.set_num_threads(1)
    if kind == "cuda":
        DEVICE = torch.device("cuda", rank)
        torch.cuda.set_device(DEVICE)
    store = dist.FileStore(os.path.join(folder, "store"), RANKS)
    backend = "nccl" if kind == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=RANKS, timeout=datetime.timedelta(seconds=60))
    results = {}
    for name, case in CASES.items():
        if kind == "cuda" and case in ON_THE_CPU:
            continue
        try:
            results[name] = case()
        except Exception:
            results[name] = traceback.format_exc()
        with open(os.path.join(folder, f"{rank}.pickle"), "wb") as file:
            pickle.dump(results, file)
    dist.destroy_process_group()
    if kind == "cpu":  # where Python ends, ~ProcessGroupGloo may wait for a thread that waits for the GIL
        os._exit(0)


@pytest.fixture(scope="module", params=["cpu", "cuda"])
def ranks(request, tmp_path_factory):
    """What each rank found, by case."""
    if request.param == "cuda" and (torch.cuda.device_count() < RANKS or not dist.is_nccl_available()):
        pytest.skip(f"wants {RANKS} GPUs and NCCL")
    folder = str(tmp_path_factory.mktemp("ranks"))
    mp.spawn(run_rank, (folder, request.param), nprocs=RANKS)
    found = []
    for rank in range(RANKS):
        with open(os.path.join(folder, f"{rank}.pickle"), "rb") as file:
            found.append(pickle.load(file) | {"device": request.param})
    return found


def of_both(ranks, case):
    if case.__name__ not in ranks[0]:
        pytest.skip("on the CPU alone")
    for found in ranks:
        result = found[case.__name__]
        assert not isinstance(result, str), result
    return [found[case.__name__] for found in ranks]


def refused(result, kind, *words, rule="PG1106"):
    assert result is not None, "not refused"
    assert result[0] == kind and (rule is None or f"[{rule}]" in result[1]), result
    for each in words:
        assert each in result[1], result[1]


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
    for replayed, branches in of_both(ranks, collectives_of_two_groups_in_lanes):
        assert replayed == (STEPS, STEPS - 3, [])
        # A capture may leave those of two groups side by side, and so does a graph of it then.
        beside = "the capture does not order a collective" in branches.reason
        assert beside or branches.rebuilt or ranks[0]["device"] == "cpu", branches


@pytest.mark.parametrize("case", [ddp_that_finds_unused_parameters, ddp_with_a_static_graph])
def test_ddp_that_finds_unused_parameters_stays_eager(case, ranks):
    for equal, reasons in of_both(ranks, case):
        rule = "PG201" if ranks[0]["device"] == "cuda" else "PG101"
        assert equal and reasons and all(rule in reason for reason in reasons), reasons


def test_ddp_with_a_hook_that_makes_a_tensor_stays_eager(ranks):
    for equal, reasons in of_both(ranks, ddp_with_a_hook_that_makes_a_tensor):
        assert equal and reasons and all("PG802" in reason for reason in reasons), reasons


def test_ddp_may_be_graphed_on_one_rank_alone(ranks):
    assert of_both(ranks, ddp_graphed_on_one_rank_alone) == [True] * RANKS


def test_collectives_replay(ranks):
    for found in of_both(ranks, the_collectives):
        for name, (equal, replays, reasons) in found.items():
            assert equal == STEPS and replays >= STEPS - 4 and not reasons, (name, equal, replays, reasons)
    assert of_both(ranks, a_bare_all_reduce_in_a_capture) == [4] * RANKS


def test_graphs_go_before_their_process_group(ranks):
    for equal, before, after, reason, result in of_both(ranks, a_group_that_is_destroyed):
        assert equal == 6 and before == after >= 3
        assert ranks[0]["device"] == "cuda" or "its process group was destroyed" in reason
        refused(result, "UsageError", "holds no capture", rule=None)


def test_what_no_graph_repeats(ranks):
    for result in of_both(ranks, a_functional_collective):
        refused(result, "CaptureError", "_c10d_functional::all_reduce communicates with other ranks")
    for result in of_both(ranks, a_collective_in_a_part):
        refused(result, "CaptureError", "c10d::allreduce_", "ranks_test.py:", "graph the whole step", "after the replay")
    for equal, replays, reasons in of_both(ranks, messages):
        assert equal == STEPS and replays == 0 and "c10d::" in reasons[0] and "PG1106" in reasons[0], reasons


def test_a_capture_that_fails_after_it_has_communicated_is_an_error(ranks):
    for result, is_equal_later in of_both(ranks, an_error_in_the_capture):
        refused(result, "UsageError", "after the step had communicated with other ranks", "out of bounds")
        assert is_equal_later


def test_the_audit_says_so(ranks):
    for ddp, reduce in of_both(ranks, the_audit):
        assert not any(rule == "PG1106" for rule, what in ddp + reduce), (ddp, reduce)


def test_sharded_parameters_and_distributed_tensors_stay_eager(ranks):
    for steps, reasons, result in of_both(ranks, fully_sharded_parameters):
        assert steps == 4 and reasons, reasons  # sharding replaces parameters: a signature for each set
        assert all("FSDP::" in reason for reason in reasons), reasons
        refused(result, "CaptureError", "FSDP::")
    for steps, reasons, result in of_both(ranks, distributed_tensors):
        assert steps == 4 and len(reasons) == 1 and "a DTensor" in reasons[0], reasons
        refused(result, "UsageError", "a DTensor, which runs Python for each operation", "to_local()", rule="PG1203")
