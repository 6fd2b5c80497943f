"""Recurrent layers with dropout, whose numbers cuDNN draws from a state of its own: seeds come between calls as users put
them there."""

import pytest
import torch

import pianola
from twins import assert_same


def make(kind, device):
    torch.manual_seed(0)
    return getattr(torch.nn, kind)(8, 8, num_layers=2, dropout=0.5).to(device)


def run(call, inputs, seeds):
    torch.manual_seed(1)
    results = []
    for i, x in enumerate(inputs):
        if i in seeds:
            torch.manual_seed(i)
        results.append(call(x).clone())
    return results


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("seeds", [(), (2,), (3,), (6,), (6, 7, 8), (5, 9), tuple(range(14)), (2, 5, 8, 11)], ids=str)
def test_results_are_those_of_eager_whatever_is_seeded_between_calls(device, kind, seeds):
    layer = make(kind, device)
    inputs = [torch.randn(5, 3, 8, device=device) for _ in range(14)]
    expected = run(lambda x: layer(x)[0].detach(), inputs, seeds)

    graphed = pianola.graphed(lambda x: layer(x)[0].detach(), warmup=2)
    for i, (result, eager) in enumerate(zip(run(graphed, inputs, seeds), expected)):
        assert_same(f"call {i}", result, eager)
    (signature,) = graphed.info().signatures
    assert signature.replays > 0 or len(seeds) > 3
    assert signature.state != "warming up"


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_a_graph_is_refused_after_a_seed_that_it_cannot_follow(device, kind):
    layer = make(kind, device)
    x = torch.randn(5, 3, 8, device=device)
    layer(x)
    graph, results = pianola.Graph(device), []
    graph.capture(lambda: results.__setitem__(slice(None), [layer(x)[0].detach()]))
    graph.replay()
    torch.manual_seed(3)
    if torch.device(device).type == "cuda":
        with pytest.raises(pianola.ReplayError, match="seeded or set since the capture.*recurrent dropout"):
            graph.replay()
        torch.manual_seed(3)
        again = layer(x)[0]
        torch.manual_seed(3)
        assert_same("eager after the refusal", layer(x)[0], again)
    else:
        graph.replay()
        torch.manual_seed(3)
        assert_same("replay after a seed", results[0], layer(x)[0])


def test_a_whole_iteration_follows_seeds_between_its_calls(device):
    layer, twin = make("LSTM", device), make("LSTM", device)
    xs = [torch.randn(5, 3, 8, device=device) for _ in range(12)]

    def train(module):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

        def step(microbatches):
            optimizer.zero_grad(set_to_none=False)
            loss = module(microbatches[0])[0].square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    iteration = pianola.FullIteration(train(layer), warmup=2)
    eager = train(twin)
    results = run(lambda x: iteration([x]), xs, (3, 8))
    for i, (result, expected) in enumerate(zip(results, run(lambda x: eager([x]), xs, (3, 8)))):
        assert_same(f"loss {i}", result, expected)
    (signature,) = iteration.info().signatures
    assert signature.replays > 0
