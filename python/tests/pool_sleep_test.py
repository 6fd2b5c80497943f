"""Pools that give their memory back while others work."""

import copy
import subprocess
import sys
import threading

import pianola
import pytest
import torch
from layer_programs import Gpt, next_word_step, training_step, words
from twins import assert_same


def training(model, device):
    return next_word_step(model, torch.optim.AdamW(model.parameters()))


def made(device):
    torch.manual_seed(5)
    return Gpt(layers=2, size=128).to(device)


@pytest.mark.parametrize("keep_executables", [True, False])
@pytest.mark.parametrize("plan_memory", [False, True])
@pytest.mark.parametrize("way", ["iteration", "graphed"])
def test_training_goes_on_where_it_slept(device, way, plan_memory, keep_executables):
    model = made(device)
    eager = training(copy.deepcopy(model), device)
    pool = pianola.GraphPool(device, can_sleep=True)
    step = training(model, device)
    if way == "iteration":
        step = pianola.FullIteration(step, pool=pool, plan_memory=plan_memory)
    else:
        step = pianola.graphed(step, pool=pool, plan_memory=plan_memory)
    for i in range(10):
        ids = words(i, device, batch=32)
        torch.manual_seed(i)  # of the dropout
        loss = step(ids)
        torch.manual_seed(i)
        assert_same(f"loss {i}", loss, eager(ids))
        with pool.suspended(keep_executables=keep_executables) as given_back:
            assert pool.is_asleep
            assert given_back > 0 or i < 3
    assert step.info().signatures[0].replays >= 5


def test_a_model_and_its_optimizer_sleep_with_the_pool(device):
    torch.manual_seed(5)
    eager_model = Gpt(layers=2, size=128).to(device)
    eager = training(eager_model, device)
    pool = pianola.GraphPool(device, can_sleep=True)
    with pool.allocations():
        model = copy.deepcopy(eager_model)
        step = training(model, device)
        ids = words(0, device, batch=32)
        torch.manual_seed(0)
        step(ids)  # makes the optimizer's state
    torch.manual_seed(0)
    eager(ids)
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    iteration = pianola.FullIteration(step, pool=pool)
    for i in range(1, 9):
        ids = words(i, device, batch=32)
        torch.manual_seed(i)
        loss = iteration(ids)
        torch.manual_seed(i)
        assert_same(f"loss {i}", loss, eager(ids))
        given_back = pool.suspend()
        assert device.type == "cpu" or given_back >= 3 * parameters  # with AdamW's averages
        if device.type == "cuda":
            torch.full((3 * parameters,), 7, dtype=torch.uint8, device=device)  # somebody else has the memory
        pool.resume()
        for name, parameter in model.named_parameters():
            assert_same(f"{name} after step {i}", parameter, eager_model.get_parameter(name))
    assert iteration.info().signatures[0].replays >= 4


def test_a_capture_or_a_sleep_while_allocations_go_to_a_pool_is_refused(device):
    pool = pianola.GraphPool(device, can_sleep=True)
    x = torch.ones(4, device=device)
    graph = pianola.Graph(device)
    with pool.allocations(), pytest.raises(pianola.UsageError, match="while what this thread allocates goes to a pool"):
        graph.capture(lambda: x + 1)
    inside = r"suspend\(\) was called on a graph pool inside of its allocations\(\)(.|\n)*in Python of `with pool.allocations\(\)`"
    with pool.allocations(), pytest.raises(pianola.UsageError, match=inside):
        pool.suspend()
    graph.capture(lambda: x + 1, pool=pool)
    pool.suspend()
    with pytest.raises(pianola.UsageError, match=r"allocations\(\) was given a pool that is asleep"), pool.allocations():
        pass
    pool.resume()


def test_calls_without_gradients_sleep_too(device):
    model = made(device).eval()
    pool = pianola.GraphPool(device, can_sleep=True)
    call = pianola.graphed(copy.deepcopy(model), pool=pool)
    with torch.no_grad():
        for i in range(6):
            ids = words(i, device)
            assert_same(f"call {i}", call(ids), model(ids))
            pianola.suspend_all()
            pianola.resume_all()
    assert call.forward.info().signatures[0].replays >= 2


def test_a_replay_while_asleep_raises_and_computes_nothing(device):
    x = torch.ones(4, device=device)
    pool = pianola.GraphPool(device, can_sleep=True)
    graph = pianola.Graph(device)
    graph.capture(lambda: x.add_(1), pool=pool)
    pool.suspend()
    with pytest.raises(pianola.UsageError, match="a graph whose pool is asleep; nothing was launched"):
        graph.replay()
    with pytest.raises(pianola.UsageError, match="was given a pool that is asleep"):
        pianola.Graph(device).capture(lambda: x.add_(1), pool=pool)
    pool.resume()
    graph.replay()
    assert x.tolist() == [2.0] * 4


ASLEEP = "a graph whose pool is asleep; nothing was launched"


def net_and_step(device):
    """A model, and a step that trains it; and an eager twin of both."""
    torch.manual_seed(2)
    net = torch.nn.Linear(6, 6).to(device)
    return [(one, training_step(one, torch.optim.SGD(one.parameters(), lr=0.1))) for one in (net, copy.deepcopy(net))]


def rows(device, number, count=4):
    generator = torch.Generator().manual_seed(number)
    return torch.randn(count, 6, generator=generator).to(device), torch.randint(6, (count,), generator=generator).to(device)


def caller(way, net, step, pool, told=None):
    """Calls of a batch, by graphs of the pool: of the step, but for those of "callable", which are of the net alone."""
    if way == "iteration":
        return pianola.FullIteration(lambda batch: step(*batch), pool=pool)
    if way == "fallback":
        return pianola.FullIteration(lambda batch: step(*batch), pool=pool, eager_fallback=True, on_fallback=told.append)
    if way == "buckets":
        inputs = pianola.StaticInputs(pool.device, buckets=pianola.Buckets([4, 8], dim=0))
        iteration = pianola.FullIteration(lambda batch: step(*batch), pool=pool)

        def of_bucket(batch):
            inputs.load(batch)
            return iteration(inputs)

        return of_bucket
    if way == "graphed":
        graphed = pianola.graphed(step, pool=pool, on_fallback=told.append)
        return lambda batch: graphed(*batch)
    call = pianola.make_graphed_callables(net, (rows(pool.device, 0)[0],), pool=pool)
    return lambda batch: call(batch[0])


@pytest.mark.parametrize("way", ["iteration", "fallback", "buckets", "graphed", "callable"])
def test_no_call_computes_while_its_pool_sleeps(device, way):
    (net, step), _ = net_and_step(device)
    pool = pianola.GraphPool(device, can_sleep=True)
    call = caller(way, net, step, pool, told=[])
    for i in range(6):
        call(rows(device, i))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pool.suspended():
        for _ in range(2):
            with pytest.raises(pianola.UsageError, match=ASLEEP):
                call(rows(device, 7))
        for name, value in net.state_dict().items():
            assert torch.equal(value, before[name]), name
    call(rows(device, 7))
    assert way == "callable" or not torch.equal(net.weight, before["weight"])


@pytest.mark.parametrize("way", ["fallback", "graphed"])
def test_calls_that_find_the_pool_asleep_are_captured_when_it_is_awake(device, way):
    (net, step), (_, eager) = net_and_step(device)
    pool = pianola.GraphPool(device, can_sleep=True)
    told = []
    call = caller(way, net, step, pool, told)
    for i in range(6):
        assert_same(f"call {i}", call(rows(device, i)), eager(*rows(device, i)))
    pool.suspend()
    for i in range(6):
        batch = rows(device, i, count=3)
        assert_same(f"call {i}, asleep", call(batch), eager(*batch))
    pool.resume()
    for i in range(3):
        batch = rows(device, i, count=3)
        assert_same(f"call {i}, awake", call(batch), eager(*batch))
    assert told == []


def test_an_iteration_that_finds_its_pool_asleep_is_refused_and_captured_when_it_is_awake(device):
    (net, step), (_, eager) = net_and_step(device)
    pool = pianola.GraphPool(device, can_sleep=True)
    iteration = caller("iteration", net, step, pool)
    pool.suspend()
    for i in range(3):  # nothing of the pool is needed yet
        assert_same(f"iteration {i}", iteration(rows(device, i)), eager(*rows(device, i)))
    for _ in range(2):
        with pytest.raises(pianola.UsageError, match=r"capture\(\) was given a pool that is asleep"):
            iteration(rows(device, 3))
    pool.resume()
    for i in range(3, 6):
        assert_same(f"iteration {i}", iteration(rows(device, i)), eager(*rows(device, i)))
    assert iteration.info().signatures[0].replays == 3


@pytest.mark.parametrize("way", ["iteration", "graphed"])
def test_a_parameter_that_moved_meanwhile_is_captured_where_it_is(device, way):
    (net, step), (twin, eager) = net_and_step(device)
    pool = pianola.GraphPool(device, can_sleep=True)
    call = caller(way, net, step, pool, told=[])
    for i in range(12):
        assert_same(f"call {i}", call(rows(device, i)), eager(*rows(device, i)))
        if i == 6:
            with pool.suspended():
                for parameter in net.parameters():
                    parameter.data = parameter.data.clone()
    for name, value in net.state_dict().items():
        assert_same(name, value, twin.state_dict()[name])


def test_a_parameter_that_moved_meanwhile_is_named(device):
    (net, _), _ = net_and_step(device)
    pool = pianola.GraphPool(device, can_sleep=True)
    x, y = rows(device, 0)[0], torch.zeros(4, 6, device=device)
    graph = pianola.Graph(device)
    with torch.no_grad():
        graph.capture(lambda: y.copy_(net(x)), pool=pool, names=dict(net.named_parameters()), warmup=1)
    call = caller("callable", net, None, pool)
    with pool.suspended():
        net.weight.data = net.weight.data.clone()
    with pytest.raises(pianola.ReplayError, match=r"'weight', a Float tensor of shape \[6, 6\]: its memory was replaced .* while the graph's pool slept") as caught:
        graph.replay()
    assert caught.value.rule == "PG402" and "pool.allocations()" in caught.value.fix
    assert y.count_nonzero() == 0, "nothing was launched"
    with pytest.raises(pianola.GuardError, match="parameter 'weight' of shape .* its memory was replaced"):
        call(rows(device, 0))


@pytest.mark.parametrize("keep_executables", [True, False])
def test_a_reset_while_asleep_lets_the_pool_wake_for_the_next_capture(device, keep_executables):
    x, out = torch.ones(1 << 16, device=device), []
    pool = pianola.GraphPool(device, can_sleep=True)
    graph, other = pianola.Graph(device), pianola.Graph(device)
    graph.capture(lambda: out.append(x * 2 + 1), pool=pool)
    other.capture(lambda: x.add_(1), pool=pool)
    graph.replay()
    pool.suspend(keep_executables=keep_executables)
    graph.reset()
    with pytest.raises(pianola.UsageError, match="was given a pool that is asleep"):
        graph.capture(lambda: x * 3, pool=pool)
    pool.resume()
    assert out[-1].tolist() == [3.0] * (1 << 16), "a result outlives its graph"
    other.replay()
    assert x.sum() == 2 << 16
    graph.capture(lambda: out.append(x * 3), pool=pool)
    graph.replay()
    assert out[-1].sum() == 6 << 16


@pytest.mark.parametrize("way", ["iteration", "graphed"])
def test_what_holds_graphs_may_forget_them_while_the_pool_sleeps(device, way):
    (net, step), (_, eager) = net_and_step(device)
    pool = pianola.GraphPool(device, can_sleep=True)
    holder = pianola.FullIteration(lambda batch: step(*batch), pool=pool) if way == "iteration" else pianola.graphed(step, pool=pool)

    def call(i):
        batch = rows(device, i)
        assert_same(f"call {i}", holder(batch) if way == "iteration" else holder(*batch), eager(*batch))

    for i in range(6):
        call(i)
    pool.suspend()
    holder.reset()
    pool.resume()
    for i in range(6, 12):
        call(i)
    assert holder.info().signatures[0].replays == 3


def test_executables_go_where_they_are_not_kept(device):
    x = torch.ones(4, device=device)
    pool = pianola.GraphPool(device, can_sleep=True)
    graph = pianola.Graph(device)
    graph.capture(lambda: x.add_(1), pool=pool)
    executable = graph.raw_executable()
    pool.suspend()
    assert graph.raw_executable() == executable
    pool.resume()
    for suspend in (pool.suspend, pianola.suspend_all):
        suspend(keep_executables=False)
        assert graph.raw_executable() == 0
        memory = graph.memory()
        assert (memory.executable.device, memory.pool.executables.device) == (0, 0)
        with pytest.raises(pianola.UsageError, match=r"instantiate\(\) was called on a graph whose pool is asleep"):
            graph.instantiate()
        pianola.resume_all()
        assert (graph.raw_executable() != 0) == (device.type == "cuda")
    graph.replay()
    assert x.tolist() == [2.0] * 4


@pytest.mark.parametrize("keep_executables", [True, False])
def test_a_graph_alone_in_its_pool_sleeps_by_itself(device, keep_executables):
    x = torch.ones(4, device=device)
    pool = pianola.GraphPool(device, can_sleep=True)
    graph, other = pianola.Graph(device), pianola.Graph(device)
    graph.capture(lambda: x.add_(1), pool=pool)
    assert isinstance(graph.suspend(keep_executables=keep_executables), int)
    assert pool.is_asleep
    graph.resume()
    graph.replay()
    assert x.tolist() == [2.0] * 4
    other.capture(lambda: x.mul_(2), pool=pool)
    with pytest.raises(pianola.UsageError, match=r"shares its pool with 1 other(.|\n)*call pool\.suspend\(\)"):
        graph.suspend()
    assert not pool.is_asleep
    other.reset()
    graph.suspend()
    graph.resume()


def test_a_pool_sleeps_until_the_outermost_with_ends(device):
    pool = pianola.GraphPool(device, can_sleep=True)
    with pool.suspended():
        with pool.suspended():
            assert pool.is_asleep
        assert pool.is_asleep
    assert not pool.is_asleep


@pytest.mark.parametrize("capture_error_mode", ["thread_local", "global"])
def test_a_pool_wakes_while_another_thread_captures(device, capture_error_mode):
    pool = pianola.GraphPool(device, can_sleep=True)
    x, y, out = torch.ones(1 << 16, device=device), torch.zeros(4, device=device), []
    graph, other = pianola.Graph(device), pianola.Graph(device)
    graph.capture(lambda: out.append(x * 2), pool=pool)
    graph.replay()
    is_captured, is_awake, waited = threading.Event(), threading.Event(), []

    def step():
        y.add_(1)
        is_captured.set()
        waited.append(is_awake.wait(60))

    capturing = threading.Thread(target=other.capture, args=(step,), kwargs=dict(warmup=0, capture_error_mode=capture_error_mode))
    with pool.suspended():
        capturing.start()
        assert is_captured.wait(60)
    is_awake.set()
    capturing.join()
    assert waited == [True] and not pool.is_asleep
    assert out[-1].sum() == 2 << 16
    x.fill_(3)
    graph.replay()
    other.replay()
    assert out[-1].sum() == 6 << 16 and y.tolist() == [1.0] * 4


@pytest.mark.parametrize("way", ["graphed", "iteration"])
def test_calls_that_would_capture_run_eagerly_while_the_pool_sleeps(device, way):
    model = made(device)
    eager = training(copy.deepcopy(model), device)
    pool = pianola.GraphPool(device, can_sleep=True)
    step, reasons = training(model, device), []
    if way == "iteration":
        step = pianola.FullIteration(step, pool=pool, eager_fallback=True, on_fallback=reasons.append)
    else:
        step = pianola.graphed(step, pool=pool, on_fallback=reasons.append)
    for i in range(10):
        if i == 3:
            pool.suspend()
        if i == 5:
            pool.resume()
        ids = words(i, device, batch=32)
        torch.manual_seed(i)  # of the dropout
        loss = step(ids)
        torch.manual_seed(i)
        assert_same(f"loss {i}", loss, eager(ids))
    signature = step.info().signatures[0]
    assert signature.state == "captured" and signature.replays == 5 and not reasons


def test_a_pool_has_to_be_made_to_sleep(device):
    with pytest.raises(pianola.UsageError, match="was not made to sleep"):
        pianola.GraphPool(device).suspend()


HOLDERS_OF_GRAPHS = {
    "graph": "graph = pianola.Graph(pool.device); graph.capture(lambda: out.append(step(x)), pool=pool); call = lambda x: graph.replay()",
    "iteration": "call = pianola.FullIteration(step, pool=pool)",
    "graphed": "call = pianola.graphed(step, pool=pool)",
}


@pytest.mark.parametrize("keep_executables", [True, False])
@pytest.mark.parametrize("holder", list(HOLDERS_OF_GRAPHS))
def test_a_process_may_exit_asleep(device, holder, keep_executables):
    program = f"""
import pianola, torch
x = torch.ones(1 << 20, device="{device}")
step = lambda x: x * 2 + 1
pool = pianola.GraphPool("{device}", can_sleep=True)
out = []
{HOLDERS_OF_GRAPHS[holder]}
for _ in range(5):
    out.append(call(x))
print(pool.suspend(keep_executables={keep_executables}) > 0)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stdout.strip()) == (0, "True"), result.stderr
    assert "Traceback" not in result.stderr and "terminate" not in result.stderr, result.stderr
