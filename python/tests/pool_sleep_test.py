"""Pools that give their memory back while others work."""

import copy
import subprocess
import sys

import pianola
import pytest
import torch
from layer_programs import Gpt, next_word_step, words
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


def test_a_capture_while_allocations_go_to_a_pool_is_refused(device):
    pool = pianola.GraphPool(device, can_sleep=True)
    x = torch.ones(4, device=device)
    graph = pianola.Graph(device)
    with pool.allocations(), pytest.raises(pianola.UsageError, match="while what this thread allocates goes to a pool"):
        graph.capture(lambda: x + 1)
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


def test_a_pool_has_to_be_made_to_sleep(device):
    with pytest.raises(pianola.UsageError, match="was not made to sleep"):
        pianola.GraphPool(device).suspend()


def test_a_process_may_exit_asleep(device):
    program = f"""
import pianola, torch
x = torch.ones(1 << 20, device="{device}")
pool = pianola.GraphPool("{device}", can_sleep=True)
graph = pianola.Graph("{device}")
out = []
graph.capture(lambda: out.append(x * 2 + 1), pool=pool)
graph.replay()
print(pool.suspend() > 0)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stdout.strip()) == (0, "True"), result.stderr
    assert "Traceback" not in result.stderr and "terminate" not in result.stderr, result.stderr
