"""What programs on several ranks do besides: torch's pipeline schedules, hooks of their own, objects, barriers, groups that come and go,
ranks that do other numbers of steps. Each is equal to eager, by replay or because it stays eager and says why."""

import pianola
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from two_ranks import RANKS, STEPS, WARMUP, batch, device, found_by_ranks, make_model, of_both


def compared(make, steps=STEPS):
    """`make(wrap)` returns a function of a step's number, which gives the tensors to compare, and what it wrapped.

    Returns: whether all was equal, how many calls replayed, and why others did not.
    """
    reasons = []
    expected, _ = made(make, lambda step: step, steps)
    values, graphed = made(make, lambda step: pianola.graphed(step, warmup=3, on_fallback=reasons.append), steps)
    equal = len(values) == len(expected) and all(map(torch.equal, values, expected))
    return equal, sum(one.replays for each in graphed for one in each.info().signatures), reasons


def made(make, wrap, steps):
    call, *wrapped = make(wrap)
    return [one.detach().clone() for number in range(steps) for one in call(number)], wrapped


def simple(step):
    """Of a step that only computes."""

    def make(wrap):
        wrapped = wrap(step)
        return lambda number: wrapped(batch(number)), wrapped

    return compared(make)


def training(model_of, optimizer_of=None):
    """Of a step that trains the model."""

    def make(wrap):
        model = model_of()
        optimizer = (optimizer_of or (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)))(model.parameters())

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        wrapped = wrap(step)
        return lambda number: [wrapped(batch(number)), *model.parameters()], wrapped

    return compared(make)


# --- Pipelines by torch.distributed.pipelining ---


def stages(kind, dropout=0.0, wrap=lambda module: module):
    """This rank's stages and their schedule."""
    from torch.distributed import pipelining

    rank, of_rank = dist.get_rank(), 2 if kind == "ScheduleInterleaved1F1B" else 1
    modules = []
    for i in range(of_rank):
        torch.manual_seed(rank + RANKS * i)
        modules.append(nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Dropout(dropout), nn.Linear(6, 6)).to(device()))
    modules = [wrap(one) for one in modules]
    parts = [pipelining.PipelineStage(one, rank + RANKS * i, RANKS * of_rank, device()) for i, one in enumerate(modules)]
    schedule = getattr(pipelining, kind)(parts if of_rank > 1 else parts[0], 4, loss_fn=nn.functional.mse_loss)
    torch.manual_seed(rank)
    return modules, parts, schedule


def microbatches(number):
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(number)).to(device())


def pipelined_step(schedule, parts, optimizer, clears):
    def step(x):
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            schedule.step(x)
            found = ()
        else:
            losses = []
            output = schedule.step(target=x, losses=losses)
            found = output.detach(), torch.stack(losses).detach()
        optimizer.step()
        for part in parts if clears else ():
            part.clear_runtime_states()
        return found

    return step


def pipeline(kind, clears=True, dropout=0.0):
    """@param clears  The last stage keeps its outputs until the next step otherwise."""

    def make(wrap):
        modules, parts, schedule = stages(kind, dropout)
        parameters = [p for one in modules for p in one.parameters()]
        wrapped = wrap(pipelined_step(schedule, parts, torch.optim.AdamW(parameters, lr=0.01), clears))
        return lambda number: [*wrapped(microbatches(number)), *parameters, *(p.grad for p in parameters)], wrapped

    return compared(make)


def pipelines():
    kinds = "ScheduleGPipe", "Schedule1F1B", "ScheduleInterleaved1F1B"
    return {kind: pipeline(kind) for kind in kinds} | {"with dropout": pipeline("Schedule1F1B", dropout=0.2)}


def pipelines_that_keep_outputs():
    return {kind: pipeline(kind, clears=False) for kind in ("ScheduleGPipe", "ScheduleInterleaved1F1B")}


def graphed_stages():
    """Under a schedule that is eager."""

    def of(kind):
        def make(wrap):
            modules, parts, schedule = stages(kind, wrap=wrap)
            parameters = [p for one in modules for p in one.parameters()]
            step = pipelined_step(schedule, parts, torch.optim.AdamW(parameters, lr=0.01), False)
            return lambda number: [*step(microbatches(number)), *parameters], *(getattr(one, "forward") for one in modules)

        return compared(make)

    return {kind: of(kind) for kind in ("ScheduleGPipe", "Schedule1F1B", "ScheduleInterleaved1F1B")}


# --- Steps that are collectives, and others ---


def uneven_all_to_all(x):
    rows = [1, 3] if dist.get_rank() == 0 else [2, 2]
    taken = [1, 2] if dist.get_rank() == 0 else [3, 2]
    received = x.new_empty(sum(taken), 6)
    dist.all_to_all_single(received, x * 2, taken, rows)
    return (received + 1,)


def between_other_groups():
    """Another group is used eagerly between replays, and is still at work while they run."""

    def make(wrap):
        other = dist.new_group(list(range(RANKS)))

        def step(x):
            y = x * 2
            dist.all_reduce(y)
            return y + 1

        def call(number):
            beside = batch(number) * 3
            work = dist.all_reduce(beside, group=other, async_op=True)
            reduced = wrapped(batch(number))
            work.wait()
            dist.all_reduce(beside)
            return reduced, beside

        wrapped = wrap(step)
        return call, wrapped

    return compared(make)


def makes_a_group_once():
    def make(wrap):
        groups = {}

        def step(x):
            if "mine" not in groups:
                groups["mine"] = dist.new_group(list(range(RANKS)))
            y = x * 2
            dist.all_reduce(y, group=groups["mine"])
            return (y + 1,)

        wrapped = wrap(step)
        return lambda number: wrapped(batch(number)), wrapped

    return compared(make)


def splits_among_the_arguments():
    """Each has its graph."""
    tables = [[1, 3], [3, 1]], [[2, 2], [2, 2]], [[0, 4], [4, 0]]

    def make(wrap):
        def step(x, rows, taken):
            received = torch.empty_like(x)
            dist.all_to_all_single(received, x * 2, taken, rows)
            return (received + 1,)

        def call(number):
            table = tables[number % 3]
            return wrapped(batch(number), list(table[dist.get_rank()]), [one[dist.get_rank()] for one in table])

        wrapped = wrap(step)
        return call, wrapped

    return compared(make, 2 * STEPS)


def given_numbers(step, numbers):
    """Numbers that collectives are given belong to the signature."""

    def make(wrap):
        wrapped = wrap(step)
        return lambda number: wrapped(batch(number), *numbers(number)), wrapped

    return compared(make, 4 * STEPS)


def from_a_root(x, root):
    y = x * 2
    dist.broadcast(y, src=root)
    return (y + 1,)


def scaled_from_a_root(x, root, scale):
    y = x * scale
    dist.broadcast(y, root)
    return (y + 1,)


def split_in_two(x, first, of_each):
    received = torch.empty_like(x)
    dist.all_to_all_single(received, x * 2, [of_each, 4 - of_each], [first, 4 - first])
    return (received + 1,)


def rows_in_turn(number):
    first = (1, 3) if number % 2 else (2, 2)
    return first[dist.get_rank()], first[0] if dist.get_rank() == 0 else 4 - first[0]


def the_steps():
    return {
        "uneven all-to-all": simple(uneven_all_to_all),
        "between other groups": between_other_groups(),
        "makes a group once": makes_a_group_once(),
        "splits among the arguments": splits_among_the_arguments(),
        "roots in turn": given_numbers(from_a_root, lambda number: (number % 2,)),
        "roots and scales in turn": given_numbers(scaled_from_a_root, lambda number: (number % 2, 1.5 + number)),
        "splits in turn": given_numbers(split_in_two, rows_in_turn),
    }


def splits_from_the_device(x):
    rows = (x[:, 0] > 0).sum()
    counts = torch.stack([rows, 4 - rows])
    others = torch.empty_like(counts)
    dist.all_to_all_single(others, counts)
    taken = others.tolist()
    received = x.new_empty(sum(taken), 6)
    dist.all_to_all_single(received, x * 2, taken, counts.tolist())
    return (received.sum(0),)


def gathers_objects(x):
    objects = [None] * RANKS
    dist.all_gather_object(objects, {"rank": dist.get_rank(), "sum": x.sum().item()})
    return (x * objects[0]["sum"] + objects[1]["rank"],)


def gathers_constants(x):
    objects = [None] * RANKS
    dist.all_gather_object(objects, dist.get_rank() + 1)
    return (x * objects[0] + objects[1],)


def broadcasts_objects(x):
    objects = [{"scale": 1.5}] if dist.get_rank() == 0 else [None]
    dist.broadcast_object_list(objects, src=0)
    return (x * objects[0]["scale"],)


def makes_a_group(x):
    y = x * 2
    dist.all_reduce(y, group=dist.new_group(list(range(RANKS))))
    return (y + 1,)


def makes_and_ends_a_group(x):
    group, y = dist.new_group(list(range(RANKS))), x * 2
    dist.all_reduce(y, group=group)
    dist.destroy_process_group(group)
    return (y + 1,)


def a_monitored_barrier(x):
    y = x * 2
    dist.monitored_barrier()
    return (y,)


def receives_from_anyone(x):
    received = torch.empty_like(x)
    if dist.get_rank() == 0:
        dist.send(x * 2, 1)
        source = dist.recv(received)
    else:
        source = dist.recv(received)
        dist.send(x * 3, source)
    return (received + source,)


def returns_its_work():
    """Whoever calls waits for it."""

    def make(wrap):
        def step(x):
            y = x * 2
            return y, dist.all_reduce(y, async_op=True)

        def call(number):
            reduced, work = wrapped(batch(number))
            work.wait()
            return [reduced]

        wrapped = wrap(step)
        return call, wrapped

    return compared(make)


EAGER = {
    splits_from_the_device: "to the host",
    gathers_objects: "to the host",
    gathers_constants: "to the host",
    broadcasts_objects: "",  # the sender's tensor is made of the host's memory, the others read its size
    makes_a_group: "makes or ends a process group",
    makes_and_ends_a_group: "makes or ends a process group",
}
OF_GLOO = {a_monitored_barrier: "c10d::monitored_barrier_", receives_from_anyone: "c10d::recv_any_source_"}


def steps_that_stay_eager():
    return {step.__name__: simple(step) for step in (EAGER if device().type == "cuda" else EAGER | OF_GLOO)}


# --- DistributedDataParallel with what users and torch hang into it ---


def sum_of(bucket, then=lambda tensor: tensor):
    return dist.all_reduce(bucket, async_op=True).get_future().then(lambda future: then(future.value()[0]))


def divides_before(state, bucket):
    return sum_of(bucket.buffer().div_(RANKS))


def divides_afterwards(state, bucket):
    return sum_of(bucket.buffer(), lambda tensor: tensor.div_(RANKS))


def feeds_errors_back(state, bucket):
    """What a half-sized sum leaves out is added the next time."""
    gradients = bucket.buffer()
    error = state.setdefault(bucket.index(), torch.zeros_like(gradients))
    wanted = gradients + error
    gradients.copy_(wanted.bfloat16())
    error.copy_(wanted - gradients)
    return sum_of(gradients.div_(RANKS))


def counts_calls(state, bucket):
    state["calls"] = state.get("calls", 0) + 1
    return sum_of(bucket.buffer().div_(RANKS if state["calls"] < 20 else 8))


def with_hook(hook, state=dict):
    def model():
        wrapped = DistributedDataParallel(make_model())
        wrapped.register_comm_hook(state(), hook)
        return wrapped

    return training(model)


def hooks_that_replay():
    hooks = divides_before, divides_afterwards, feeds_errors_back
    return {hook.__name__: with_hook(hook) for hook in hooks}


def hooks_that_count():
    """They do something else from their tenth iteration on."""
    own = dist.new_subgroups(1)[0]
    found = {"the user's": with_hook(counts_calls), "local SGD": with_hook(post_localSGD_hook, lambda: PostLocalSGDState(None, own, 10))}
    if device().type == "cuda" or not torch.cuda.is_available():  # torch's waits for the GPU even if the model is on the CPU, and raises
        found["PowerSGD"] = with_hook(powerSGD_hook, lambda: PowerSGDState(None, 1, 10, min_compression_rate=0.5))
    return found


def a_hook_that_comes_late():
    """Torch wants it before the first step, and takes it later without a word."""

    def make(wrap):
        model = DistributedDataParallel(make_model())

        def step(x):
            model.zero_grad()
            model(x).square().mean().backward()
            return [p.grad for p in model.parameters()]

        def call(number):
            if number == STEPS:
                model.register_comm_hook(None, divides_before)
            return [wrapped(batch(number))[0] * 1]

        wrapped = wrap(step)
        return call, wrapped

    return compared(make, 2 * STEPS)


def trained_in_a_join():
    """After some steps that are the same on all ranks, one has more data than the others."""

    def make(wrap):
        model = DistributedDataParallel(make_model())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        def call(number):
            if number:
                return []
            found = [wrapped(batch(i)) * 1 for i in range(STEPS)]
            with model.join():
                found += [wrapped(batch(i)) * 1 for i in range(4 + 4 * dist.get_rank())]
            return [*found, *model.parameters()]

        wrapped = wrap(step)
        return call, wrapped

    return compared(make)


def accumulates_other_numbers():
    """Outside of the graph: of backward passes that are not reduced, before each that is."""

    def make(wrap):
        model = DistributedDataParallel(make_model())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def accumulate(x):
            with model.no_sync():
                model(x).square().mean().backward()

        def last(x):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        def call(number):
            for i in range((number + dist.get_rank()) % 3 + dist.get_rank()):
                accumulates(batch(100 * number + i))
            return [ends(batch(number)), *model.parameters()]

        accumulates, ends = wrap(accumulate), wrap(last)
        return call, accumulates, ends

    return compared(make)


def microbatches_of_other_numbers():
    """Inside of the graph."""

    def make(wrap):
        model = DistributedDataParallel(make_model())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(*parts):
            for x in parts[:-1]:
                with model.no_sync():
                    model(x).square().mean().backward()
            loss = model(parts[-1]).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        def call(number):
            parts = [batch(100 * number + i) for i in range(1 + (number + dist.get_rank()) % 3)]
            return [wrapped(*parts), *model.parameters()]

        wrapped = wrap(step)
        return call, wrapped

    return compared(make, 4 * STEPS)


def ddp_and_the_number_of_steps():
    return {case.__name__: case() for case in (trained_in_a_join, accumulates_other_numbers, microbatches_of_other_numbers)}


def older_fsdp():
    from torch.distributed.fsdp import FullyShardedDataParallel

    def adamw(parameters):
        return torch.optim.AdamW(parameters, lr=0.01)

    def model():
        return FullyShardedDataParallel(make_model(), device_id=device(), use_orig_params=True)

    return {"SGD": training(model), "AdamW": training(model, adamw)}


CASES = (
    pipelines,
    pipelines_that_keep_outputs,
    graphed_stages,
    the_steps,
    steps_that_stay_eager,
    returns_its_work,
    hooks_that_replay,
    hooks_that_count,
    a_hook_that_comes_late,
    ddp_and_the_number_of_steps,
    older_fsdp,
)
ON_THE_CPU = ()


@pytest.fixture(scope="module", params=["cpu", "cuda"])
def ranks(request, tmp_path_factory):
    return found_by_ranks(__name__, request.param, tmp_path_factory)


@pytest.mark.parametrize("case", [pipelines, graphed_stages, the_steps])
def test_they_replay(case, ranks):
    for found in of_both(ranks, case):
        for name, (equal, replays, reasons) in found.items():
            assert equal and replays >= STEPS - 4 and not reasons, (name, equal, replays, reasons)


def test_a_last_stage_that_keeps_its_outputs_stays_eager(ranks):
    first, last = of_both(ranks, pipelines_that_keep_outputs)
    for name, (equal, replays, reasons) in first.items():
        assert equal and replays >= STEPS - 4 and not reasons, (name, equal, replays, reasons)
    for name, (equal, replays, reasons) in last.items():
        assert equal and replays == 0 and "output_chunks" in reasons[0] and "PG803" in reasons[0], (name, equal, replays, reasons)


def test_they_stay_eager_and_say_why(ranks):
    for found in of_both(ranks, steps_that_stay_eager):
        for step, words in (EAGER | OF_GLOO).items():
            if step.__name__ in found:
                equal, replays, reasons = found[step.__name__]
                assert equal and replays == 0 and len(reasons) == 1, (step, equal, replays, reasons)
                assert words in reasons[0] or "between host and device" in reasons[0], reasons
                assert "ranks_patterns_test.py:" in reasons[0], reasons


def test_a_step_that_returns_its_work_stays_eager(ranks):
    for equal, replays, reasons in of_both(ranks, returns_its_work):
        assert equal and replays == 0 and "returns a" in reasons[0] and "Work" in reasons[0], (equal, replays, reasons)


def test_hooks_of_the_users_replay(ranks):
    for found in of_both(ranks, hooks_that_replay):
        for name, (equal, replays, reasons) in found.items():
            assert equal and replays >= STEPS - WARMUP[ranks[0]["device"]] and not reasons, (name, equal, replays, reasons)


def test_hooks_that_count_stay_eager(ranks):
    for found in of_both(ranks, hooks_that_count):
        for name, (equal, replays, reasons) in found.items():
            assert equal and replays == 0, (name, equal, replays, reasons)
            # On a GPU hooks run on a thread of autograd's: what changes is told there by what they compute.
            assert any(rule in reasons[0] for rule in ("PG803", "PG301", "PG606")), (name, reasons)


def test_a_hook_that_comes_late_is_seen(ranks):
    for equal, replays, reasons in of_both(ranks, a_hook_that_comes_late):
        assert equal and replays > STEPS - WARMUP[ranks[0]["device"]], (equal, replays, reasons)


def test_ranks_may_do_other_numbers_of_steps(ranks):
    for found in of_both(ranks, ddp_and_the_number_of_steps):
        for name, (equal, replays, reasons) in found.items():
            assert equal, (name, equal, replays, reasons)
        assert found["microbatches_of_other_numbers"][1] > STEPS // 2, found
        assert any("PG802" in reason for reason in found["trained_in_a_join"][2]), found  # join() sums in a tensor of its own


def test_the_older_fsdp_stays_eager(ranks):
    for found in of_both(ranks, older_fsdp):
        for name, (equal, replays, reasons) in found.items():
            assert equal and replays == 0, (name, equal, replays, reasons)
            assert "FullyShardedDataParallel.forward" in reasons[0] and "PG1106" in reasons[0] and "fully_shard" in reasons[0], reasons
