"""Collectives and messages on two ranks, with and without the Python of torch.distributed around them: whole steps replay them and are
equal to eager; what no graph repeats is eager or refused by name."""

import functools

import numpy
import pianola
import pytest
import torch
import torch.distributed as dist
from two_ranks import RANKS, STEPS, Lanes, batch, device, found_by_ranks, make_model, of_both, refusal, refused

# --- Cases: each returns what its test looks at ---


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

    graph, x, results = pianola.Graph(device()), batch(0).clone(), []
    graph.capture(lambda: results.append(by_two_groups(x)), warmup=1, branches=4)
    found = collectives(by_two_groups, branches=4), Lanes(graph.info().branches)
    graph.reset()
    dist.destroy_process_group(other)
    return found


def an_error_in_the_capture():
    """Other ranks have taken part in it by then."""
    table = torch.arange(4.0, device=device())

    def step(x, index):
        y = x * 2
        dist.all_reduce(y)
        return y + table[index]

    graphed, good = pianola.graphed(step, warmup=2), torch.tensor([0, 1, 2, 3, 0, 1], device=device())
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
    mine, other = torch.from_numpy(array).to(device()), torch.from_numpy(array).to(device())
    other = other if device().type == "cpu" else mine

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


def reduce_scattered(x):
    whole, part, other = torch.cat([x, x.sin()]), torch.empty_like(x), torch.empty_like(x)
    work = dist.reduce_scatter_tensor(part, whole, async_op=True)
    y = x.exp()
    dist.reduce_scatter(other, [x + 1, x + 2])
    work.wait()
    return part * 2, other + 1, y


def the_collectives():
    steps = all_reduced, all_reduced_later, called_back, known_by_two_names(), gathered, scattered, reduce_scattered, sent_to_all
    return {step.__name__: collectives(step) for step in steps}


# --- Messages ---


def exchanged(x):
    """In one batch, as torch.distributed.pipelining does."""
    other, received = 1 - dist.get_rank(), torch.empty_like(x)
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, x * 2, other), dist.P2POp(dist.irecv, received, other)])
    for work in works:
        work.wait()
    return (received + 1,)


def awaited_before_sent(x):
    other, received = 1 - dist.get_rank(), torch.empty_like(x)
    ways = [dist.P2POp(dist.irecv, received, other), dist.P2POp(dist.isend, x.sin(), other)]
    works = dist.batch_isend_irecv(ways)
    y = x.cos()
    for work in works:
        work.wait()
    return received * 2, y


def passed_on(x):
    """There and back again."""
    received = torch.empty_like(x)
    if dist.get_rank() == 0:
        dist.send(x * 2, 1)
        dist.recv(received, 1)
    else:
        dist.recv(received, 0)
        dist.send(received * 2 + x, 0)
    return (received + 1,)


def seen_before_it_has_arrived(x):
    other, received = 1 - dist.get_rank(), torch.zeros(8, 6, device=x.device)
    works = dist.batch_isend_irecv([dist.P2POp(dist.irecv, received[2:6], other), dist.P2POp(dist.isend, x * 2, other)])
    flat, rest = received.view(-1), received[:2] + 1
    for work in works:
        work.wait()
    return flat * 2, rest


def the_messages():
    steps = exchanged, awaited_before_sent, passed_on, seen_before_it_has_arrived
    return {step.__name__: collectives(step) for step in steps}


# --- Functional collectives and DTensor ---


def functional():
    """By their public names, and what has a gradient."""
    from torch.distributed import _functional_collectives as functional

    world = dist.group.WORLD

    def all_reduce(x):
        return (functional.all_reduce(x * 2, "sum", world) + 1,)

    def returned_as_it_comes(x):
        return (functional.all_reduce(x * 2, "sum", world),)

    def all_gather(x):
        return (functional.all_gather_tensor(x * 2, 0, world) + 1,)

    def reduce_scatter(x):
        return (functional.reduce_scatter_tensor(x.exp(), "sum", 0, world) + 1,)

    def seen_before_it_is_used(x):
        return (functional.reduce_scatter_tensor(x.exp(), "sum", 0, world).view(-1) * 2,)

    def all_to_all(x):
        return (functional.all_to_all_single(x + 1, None, None, world) * 2,)

    weight = torch.ones(6, device=device(), requires_grad=True)

    def with_a_gradient(x):
        (gradient,) = torch.autograd.grad(functional.all_gather_tensor_autograd(x * weight, 0, world).square().sum(), weight)
        return (gradient,)

    return [all_reduce, returned_as_it_comes, all_gather, reduce_scatter, seen_before_it_is_used, all_to_all, with_a_gradient]


def the_functional_collectives():
    return {step.__name__: collectives(step) for step in functional()}


def make_mesh():
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device().type, (RANKS,))


def distributed_tensors_inside():
    from torch.distributed.tensor import DTensor, Replicate, Shard

    mesh = make_mesh()

    def step(x):
        return ((DTensor.from_local(x, mesh, [Shard(0)]) * 2).redistribute(mesh, [Replicate()]).to_local() + 1,)

    return collectives(step)


def tensor_parallel(mesh):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    return parallelize_module(make_model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def tensor_parallel_inference():
    model = tensor_parallel(make_mesh())

    def step(x):
        with torch.no_grad():
            return (model(x),)

    return collectives(step)


class Changes(torch.optim.Optimizer):
    """Does something else from its tenth step on."""

    steps = 0

    @torch.no_grad()
    def step(self):
        self.steps += 1
        for p in self.param_groups[0]["params"]:
            update = p.grad.mul(0.9**self.steps).add_(p, alpha=0.01)
            if self.steps >= 10:
                update.clamp_(-0.1, 0.1)
            p.sub_(update, alpha=0.1)


OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.01, foreach=False),
    "AdamW on the device": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),  # counts on the host
    "one that changes": lambda parameters: Changes(parameters, {}),
}


def train_tensor_parallel(mesh, optimizer, wrap, zeroed="before", holds=False):
    """All that was computed, and the gradients' own tensors where the loop holds them."""
    model = tensor_parallel(mesh)
    optimizer = OPTIMIZERS[optimizer](model.parameters())

    def step(x):
        if zeroed == "before":
            optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        if zeroed == "after":
            optimizer.zero_grad()
        return loss.detach()

    step, found, held = wrap(step), [], []
    for number in range(STEPS):
        if zeroed == "outside":
            optimizer.zero_grad()
        found.append(step(batch(number)).clone())
        gradients = [p.grad.to_local() for p in model.parameters() if p.grad is not None]
        found += [one.clone() for one in gradients]
        held += gradients if holds else []
    return [*found, *held, *(p.to_local() for p in model.parameters())], step


def tensor_parallel_training():
    """Parameters and gradients that are DTensors."""
    mesh, found = make_mesh(), {}
    ways = [(name, "before", False) for name in OPTIMIZERS] + [
        ("AdamW", "after", False), ("Adagrad", "outside", False), ("SGD", "before", True)
    ]
    for way in ways:
        optimizer, *options = way
        values, graphed = train_tensor_parallel(mesh, optimizer, pianola.graphed, *options)
        expected, _ = train_tensor_parallel(mesh, optimizer, lambda step: step, *options)
        known = graphed.info().signatures
        equal = all(torch.equal(a, b) for a, b in zip(values, expected, strict=True))
        found[way] = equal, sum(one.replays for one in known), [one.reason for one in known if one.reason]
    return found


def train_in_two_functions(mesh, wrap):
    """The optimizer is called after each third backward pass."""
    model = tensor_parallel(mesh)
    optimizer = OPTIMIZERS["AdamW"](model.parameters())

    def backward(x):
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    def update():
        optimizer.step()
        optimizer.zero_grad()

    backward, update, values = wrap(backward), wrap(update), []
    for number in range(3 * STEPS):
        values.append(backward(batch(number)).clone())
        if number % 3 == 2:
            update()
    return values + [p.to_local().clone() for p in model.parameters()], backward


def train_and_look(mesh, wrap, look):
    """@param look  Is given the number of each step, and the gradients that it left; returns what is compared."""
    model = tensor_parallel(mesh)
    optimizer = OPTIMIZERS["SGD"](model.parameters())

    def step(x):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    step, values = wrap(step), []
    for number in range(STEPS):
        step(batch(number))
        values += look(number, [p.grad for p in model.parameters()])
    return values, step


def held_themselves(number, gradients):
    """Without autograd to_local() gives the tensor itself that the gradient is made of."""
    with torch.no_grad():
        return [gradients[0].to_local()]


def with_others_inside(number, gradients):
    found = [one.to_local().clone() for one in gradients]
    if number in (8, 11):
        for one in gradients:
            one._local_tensor = one._local_tensor.clone() * 2
    return found


def gradients_between_steps():
    """For each way: whether all is eager's, and how many calls replayed."""
    mesh, found = make_mesh(), {}
    ways = {"two functions": train_in_two_functions} | {
        look.__name__: functools.partial(train_and_look, look=look) for look in (held_themselves, with_others_inside)
    }
    for name, train in ways.items():
        values, graphed = train(mesh, pianola.graphed)
        expected, _ = train(mesh, lambda step: step)
        equal = all(torch.equal(a, b) for a, b in zip(values, expected, strict=True))
        found[name] = equal, sum(one.replays for one in graphed.info().signatures)
    return found


def a_part_with_distributed_parameters():
    model = tensor_parallel(make_mesh())
    return refusal(lambda: pianola.make_graphed_callables(lambda x: model[0](x), (batch(0),)))


def a_bare_all_reduce_in_a_capture():
    x, graph, results = batch(0).clone(), pianola.Graph(device()), []
    graph.capture(lambda: results.append(all_reduced(x)[0]), warmup=1)
    equal = 0
    for number in range(4):
        x.copy_(batch(number))
        graph.replay()
        equal += torch.equal(results[-1], all_reduced(batch(number))[0])
    return equal


def a_barrier():
    def step(x):
        y = x * 2
        dist.barrier()
        return (y,)

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
    x, graph = batch(0).clone(), pianola.Graph(device())
    graph.capture(lambda: step(x), warmup=1)
    (before,) = graphed.info().signatures
    dist.destroy_process_group(group)
    refused = refusal(graph.replay)
    if device().type == "cpu":  # where torch's own collective does no harm then
        graphed(batch(0))
    after = graphed.info().signatures[0]
    return equal, before.replays, after.replays, after.reason, refused


def a_collective_in_a_part():
    return refusal(lambda: pianola.make_graphed_callables(lambda x: all_reduced(x)[0], (batch(0),)))


def distributed_tensors():
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh, reasons = make_mesh(), []
    graphed = pianola.graphed(lambda x: x * 2, warmup=1, on_fallback=reasons.append)
    full = torch.arange(8.0, device=device())
    equal = sum(
        torch.equal(graphed(distribute_tensor(full + n, mesh, [Shard(0)])).full_tensor(), (full + n) * 2) for n in range(4)
    )
    sample = distribute_tensor(full, mesh, [Shard(0)])
    return equal, reasons, refusal(lambda: pianola.make_graphed_callables(lambda x: x * 2, (sample,)))


CASES = (
    collectives_of_two_groups_in_lanes,
    an_error_in_the_capture,
    the_collectives,
    a_bare_all_reduce_in_a_capture,
    the_messages,
    the_functional_collectives,
    distributed_tensors_inside,
    tensor_parallel_inference,
    tensor_parallel_training,
    gradients_between_steps,
    a_part_with_distributed_parameters,
    a_barrier,
    a_group_that_is_destroyed,
    a_collective_in_a_part,
    distributed_tensors,
)
ON_THE_CPU = (an_error_in_the_capture,)  # a kernel's assertion ends the device's context


@pytest.fixture(scope="module", params=["cpu", "cuda"])
def ranks(request, tmp_path_factory):
    return found_by_ranks(__name__, request.param, tmp_path_factory)


@pytest.mark.parametrize("case", [the_collectives, the_messages, the_functional_collectives])
def test_what_ranks_tell_each_other_replays(case, ranks):
    for found in of_both(ranks, case):
        for name, (equal, replays, reasons) in found.items():
            assert equal == STEPS and replays >= STEPS - 4 and not reasons, (name, equal, replays, reasons)


def test_a_capture_of_a_collective_replays(ranks):
    assert of_both(ranks, a_bare_all_reduce_in_a_capture) == [4] * RANKS


def test_collectives_of_two_groups_in_lanes(ranks):
    for replayed, branches in of_both(ranks, collectives_of_two_groups_in_lanes):
        assert replayed == (STEPS, STEPS - 3, [])
        # A capture may leave those of two groups side by side, and so does a graph of it then.
        beside = "the capture does not order a collective" in branches.reason
        assert beside or branches.rebuilt or ranks[0]["device"] == "cpu", branches


@pytest.mark.parametrize("case", [distributed_tensors_inside, tensor_parallel_inference])
def test_distributed_tensors_replay_inside_of_a_step(case, ranks):
    for equal, replays, reasons in of_both(ranks, case):
        assert equal == STEPS and replays >= STEPS - 4 and not reasons, (equal, replays, reasons)


def test_training_of_distributed_tensors_replays(ranks):
    for found in of_both(ranks, tensor_parallel_training):
        for way, (equal, replays, reasons) in found.items():
            optimizer, _, holds = way
            assert equal, (way, replays, reasons)
            if holds:
                assert "stale again" in reasons[0], reasons
            else:
                assert replays >= STEPS // 2 and not reasons, (way, replays, reasons)


def test_gradients_that_are_distributed_tensors_are_those_of_eager(ranks):
    for found in of_both(ranks, gradients_between_steps):
        assert all(equal for equal, _ in found.values()), found
        assert all(replays > 0 for _, replays in found.values()), found


def test_a_part_with_distributed_parameters_is_refused(ranks):
    for result in of_both(ranks, a_part_with_distributed_parameters):
        refused(result, "CaptureError", "a DTensor that requires grad", "graph the whole step", rule="PG1203")


def test_graphs_go_before_their_process_group(ranks):
    for equal, before, after, reason, result in of_both(ranks, a_group_that_is_destroyed):
        assert equal == 6 and before == after >= 3
        assert ranks[0]["device"] == "cuda" or "its process group was destroyed" in reason
        refused(result, "UsageError", "holds no capture", rule=None)


def test_what_no_graph_repeats(ranks):
    for result in of_both(ranks, a_collective_in_a_part):
        refused(result, "CaptureError", "c10d::allreduce_", "ranks_collectives_test.py:", "graph the whole step", "after the replay")
    for equal, replays, reasons in of_both(ranks, a_barrier):
        assert equal == STEPS and replays == 0 and "c10d::barrier" in reasons[0] and "PG1106" in reasons[0], reasons


def test_a_capture_that_fails_after_it_has_communicated_is_an_error(ranks):
    for result, is_equal_later in of_both(ranks, an_error_in_the_capture):
        refused(result, "UsageError", "after the step had communicated with other ranks", "out of bounds")
        assert is_equal_later


def test_arguments_that_are_distributed_tensors_stay_eager(ranks):
    for steps, reasons, result in of_both(ranks, distributed_tensors):
        assert steps == 4 and len(reasons) == 1 and "a DTensor" in reasons[0], reasons
        refused(result, "UsageError", "a DTensor, which runs Python for each operation", "to_local()", rule="PG1203")
