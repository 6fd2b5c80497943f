"""Graphs of a pool that share executables, by all that takes a pool. On the CPU there are none to share."""

import copy

import pianola
import pytest
import torch
import torch.distributed as dist
from layer_programs import Gpt, next_word_step, words
from twins import MLP, assert_same


def sharing_pool(device, **options):
    return pianola.GraphPool(device, share_executables=True, **options)


def shared_in(pool):
    """How many graphs of the pool share an executable."""
    return sum(memory.shares_executable for memory in pianola.memory_of_graphs(pool.device) if memory.pool.id == pool.id)


def layers_of(device, count):
    torch.manual_seed(3)
    return [MLP(width=32).to(device) for _ in range(count)]


def test_layers_replay_by_one_executable(device):
    layers, pool = layers_of(device, 4), sharing_pool(device)
    x, graphs, results = torch.randn(8, 32, device=device), [], {}

    def run(i):
        with torch.no_grad():
            results[i] = layers[i](x)

    for i in range(len(layers)):
        graphs.append(pianola.Graph(device))
        graphs[i].capture(lambda i=i: run(i), pool=pool)
    on_cuda = device.type == "cuda"
    assert [graph.info().shares_executable for graph in graphs] == [on_cuda] * len(layers)
    assert shared_in(pool) == (len(layers) if on_cuda else 0)
    assert len({graph.memory().pool.executables.host for graph in graphs}) == 1
    assert "shared with other graphs" in str(graphs[0].info())
    for call in range(30):
        i = call * 3 % 7 % len(layers)
        x.copy_(torch.randn(8, 32))
        graphs[i].replay()
        with torch.no_grad():
            assert_same(f"call {call}", results[i].clone(), layers[i](x))


def test_graphed_callables_train_as_eager(device):
    layers = layers_of(device, 3)
    twins, pool = copy.deepcopy(layers), sharing_pool(device)
    sample = torch.randn(8, 32, device=device, requires_grad=True)
    graphed = pianola.make_graphed_callables(tuple(layers), tuple((sample,) for _ in layers), pool=pool, branches=0)
    if device.type == "cuda":
        assert shared_in(pool) >= len(layers)
    optimizers = [torch.optim.SGD([p for layer in some for p in layer.parameters()], lr=0.1) for some in (layers, twins)]
    for step in range(8):
        x = torch.randn(8, 32, generator=torch.Generator().manual_seed(step)).to(device)
        losses = []
        for chain, optimizer in zip((graphed, twins), optimizers):
            hidden = x.clone().requires_grad_()
            for layer in chain:
                hidden = layer(hidden)
            loss = hidden.square().mean()
            optimizer.zero_grad(set_to_none=False)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach().clone())
        assert_same(f"loss {step}", *losses)
    for layer, twin in zip(layers, twins):
        for mine, other in zip(layer.parameters(), twin.parameters()):
            assert_same("parameter", mine, other)


def test_graphed_functions_infer_as_eager(device):
    layers, pool = layers_of(device, 3), sharing_pool(device)

    def made(layer):
        return pianola.graphed(lambda x: layer(x), pool=pool, branches=0)

    graphed = [made(layer) for layer in layers]
    with torch.no_grad():
        for call in range(8):
            for rows in (4, 8):
                hidden = expected = torch.randn(rows, 32, device=device)
                for layer, one in zip(layers, graphed):
                    hidden, expected = one(hidden), layer(expected)
                assert_same(f"call {call}, {rows} rows", hidden, expected)
    if device.type == "cuda":
        assert shared_in(pool) > 0
    assert all(signature.replays > 0 for one in graphed for signature in one.info().signatures)


@pytest.mark.parametrize("plan_memory", [False, True])
def test_iterations_of_several_lengths_train_as_eager(device, plan_memory):
    torch.manual_seed(5)
    model = Gpt(layers=2, size=64).to(device)
    twin, pool = copy.deepcopy(model), sharing_pool(device, can_sleep=True, plan_memory=plan_memory)

    def training(model):
        return next_word_step(model, pianola.optim.AdamW(model.parameters()))

    step, eager = pianola.FullIteration(training(model), pool=pool), training(twin)
    for i in range(16):
        ids = words(i, device, batch=8)[:, : (8, 16)[i % 2]].contiguous()
        torch.manual_seed(i)
        loss = step(ids).clone()
        torch.manual_seed(i)
        assert_same(f"loss {i}", loss, eager(ids))
        with pool.suspended(keep_executables=i % 3 == 0):
            pass
    assert all(signature.replays >= 3 for signature in step.info().signatures)


def test_a_graph_that_communicates_keeps_its_own(device):
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        pool, values, graphs = sharing_pool(device), [torch.full((64,), float(i), device=device) for i in range(3)], []

        def step(x):
            x.add_(1)
            dist.all_reduce(x)

        for x in values[:2]:
            graphs.append(pianola.Graph(device))
            graphs[-1].capture(lambda x=x: step(x), pool=pool)
        for call in range(6):
            graphs[call % 2].replay()
        assert [graph.info().shares_executable for graph in graphs] == [False, False]
        assert [x[0].item() for x in values[:2]] == [3, 4]
        for graph in graphs:
            graph.reset()
    finally:
        dist.destroy_process_group()
