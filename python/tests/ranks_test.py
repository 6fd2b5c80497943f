"""Two ranks on the CPU: what communicates is eager or refused by name, and gradients are those of eager
DistributedDataParallel. One pair of processes runs every case."""

import os
import pickle
import traceback

import pianola
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("torch has no gloo", allow_module_level=True)

RANKS, STEPS = 2, 16


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def batch(step):
    """Another one on each rank."""
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))


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


def ddp_in_a_graphed_step():
    model, reasons = DistributedDataParallel(make_model()), []

    @pianola.graphed(warmup=3, on_fallback=reasons.append)
    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        return loss

    found = []
    for number in range(STEPS):
        model.zero_grad()
        step(batch(number))
        found.append(gradients(model))
    return right(found), reasons


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
    return right(found), reasons


def ddp_in_a_capture():
    model = DistributedDataParallel(make_model())
    x = batch(0)
    return refusal(lambda: pianola.Graph("cpu").capture(lambda: model(x).sum().backward()))


def ddp_hooks_alone_in_a_capture():
    """The hooks communicate, though forward is not DistributedDataParallel's."""
    model = DistributedDataParallel(make_model())
    x = batch(0)
    model(x).sum().backward()
    prediction = model(x)
    return refusal(lambda: pianola.Graph("cpu").capture(lambda: prediction.sum().backward(), warmup=0))


def a_bare_all_reduce():
    def step(x):
        y = x * 2
        dist.all_reduce(y)
        return y

    reasons, equal = [], 0
    graphed = pianola.graphed(step, warmup=3, on_fallback=reasons.append)
    for number in range(STEPS):
        equal += torch.equal(graphed(batch(number)), step(batch(number)))
    x = batch(0)
    return equal, reasons, refusal(lambda: pianola.Graph("cpu").capture(lambda: step(x)))


def a_functional_collective():
    from torch.distributed._functional_collectives import all_reduce

    x = batch(0)
    return refusal(lambda: pianola.Graph("cpu").capture(lambda: all_reduce(x * 2, "sum", dist.group.WORLD) + 1))


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

    mesh, model, reasons = init_device_mesh("cpu", (RANKS,)), make_model(), []
    fully_shard(model, mesh=mesh)
    twin = make_model()
    graphed = pianola.graphed(lambda x: model(x), warmup=1, on_fallback=reasons.append)
    equal = sum(torch.equal(graphed(batch(number)), twin(batch(number))) for number in range(4))
    x = batch(0)
    return equal, reasons, refusal(lambda: pianola.Graph("cpu").capture(lambda: model(x)))


def distributed_tensors():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh, reasons = init_device_mesh("cpu", (RANKS,)), []
    graphed = pianola.graphed(lambda x: x * 2, warmup=1, on_fallback=reasons.append)
    full = torch.arange(8.0)
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
        ddp_in_an_iteration,
        ddp_in_a_capture,
        ddp_hooks_alone_in_a_capture,
        a_bare_all_reduce,
        a_functional_collective,
        the_audit,
        fully_sharded_parameters,
        distributed_tensors,
    )
}


def run_rank(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(os.path.join(folder, "store"), RANKS), rank=rank, world_size=RANKS)
    results = {}
    for name, case in CASES.items():
        try:
            results[name] = case()
        except Exception:
            results[name] = traceback.format_exc()
        with open(os.path.join(folder, f"{rank}.pickle"), "wb") as file:
            pickle.dump(results, file)
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each rank found, by case."""
    folder = str(tmp_path_factory.mktemp("ranks"))
    mp.spawn(run_rank, (folder,), nprocs=RANKS)
    found = []
    for rank in range(RANKS):
        with open(os.path.join(folder, f"{rank}.pickle"), "rb") as file:
            found.append(pickle.load(file))
    return found


def of_both(ranks, case):
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


@pytest.mark.parametrize("case", [ddp_in_a_graphed_step, ddp_in_an_iteration])
def test_ddp_inside_of_a_step_stays_eager(case, ranks):
    for steps, reasons in of_both(ranks, case):
        assert steps == STEPS
        assert len(reasons) == 1 and "DistributedDataParallel.forward" in reasons[0] and "PG1106" in reasons[0], reasons


def test_ddp_inside_of_a_capture_is_refused(ranks):
    for result in of_both(ranks, ddp_in_a_capture):
        refused(result, "CaptureError", "DistributedDataParallel.forward", "ranks_test.py:")
    for result in of_both(ranks, ddp_hooks_alone_in_a_capture):
        refused(result, "CaptureError", "c10d::allreduce_ communicates with other ranks")


def test_collectives(ranks):
    for steps, reasons, result in of_both(ranks, a_bare_all_reduce):
        assert steps == STEPS
        assert len(reasons) == 1 and "c10d::allreduce_ communicates with other ranks" in reasons[0], reasons
        refused(result, "CaptureError", "c10d::allreduce_", "ranks_test.py:", "after the replay")
    for result in of_both(ranks, a_functional_collective):
        refused(result, "CaptureError", "_c10d_functional::all_reduce communicates with other ranks")


def test_the_audit_says_so(ranks):
    for ddp, reduce in of_both(ranks, the_audit):
        assert any(rule == "PG1106" and "DistributedDataParallel.forward" in what for rule, what in ddp), ddp
        assert any(rule == "PG1106" and "c10d::allreduce_" in what for rule, what in reduce), reduce


def test_sharded_parameters_and_distributed_tensors_stay_eager(ranks):
    for steps, reasons, result in of_both(ranks, fully_sharded_parameters):
        assert steps == 4 and reasons, reasons  # sharding replaces parameters: a signature for each set
        assert all("FSDP::" in reason for reason in reasons), reasons
        refused(result, "CaptureError", "FSDP::")
    for steps, reasons, result in of_both(ranks, distributed_tensors):
        assert steps == 4 and len(reasons) == 1 and "a DTensor" in reasons[0], reasons
        refused(result, "UsageError", "a DTensor, which runs Python for each operation", "to_local()", rule="PG1203")
