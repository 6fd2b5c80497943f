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


class WordModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(20, 8)
        self.lstm = torch.nn.LSTM(8, 8, 2)
        self.head = torch.nn.Linear(8, 20)

    def forward(self, x, hidden):
        output, hidden = self.lstm(self.embedding(x), hidden)
        return self.head(output), hidden


def train_words(device, graphed, begin, calls=20):
    """`begin(hidden)` is what the step makes of the state that it is given, as the last call returned it: with its history."""
    torch.manual_seed(0)
    model = WordModel().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y, hidden):
        optimizer.zero_grad()
        output, hidden = model(x, begin(hidden))
        loss = torch.nn.functional.cross_entropy(output.flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach(), hidden

    step = pianola.graphed(step) if graphed else step
    hidden = tuple(torch.zeros(2, 3, 8, device=device) for _ in range(2))
    seen = []
    for i in range(calls):
        words = torch.randint(0, 20, (6, 3), generator=torch.Generator().manual_seed(i)).to(device)
        loss, hidden = step(words[:-1], words[1:], hidden)
        seen += [loss, *hidden]
    return seen, model, step


def copied(hidden):
    with torch.no_grad():
        return tuple(one * 0.5 for one in hidden)


@pytest.mark.parametrize("begin", [lambda hidden: tuple(one.detach() for one in hidden), copied], ids=["detached", "without grad"])
def test_a_state_with_a_history_that_the_step_drops_is_an_input_as_others(device, begin):
    (mine, a, step), (theirs, b, _) = train_words(device, True, begin), train_words(device, False, begin)
    for one, other in zip(mine, theirs):
        assert torch.equal(one, other)
    for one, other in zip(a.parameters(), b.parameters()):
        assert torch.equal(one, other)
    assert sum(one.replays for one in step.info().signatures) >= 11, step.info()


def test_an_input_whose_history_is_used_stays_eager(device):
    def train(graphed):
        torch.manual_seed(0)
        below, above = torch.nn.Parameter(torch.ones(2, 4, device=device)), torch.nn.Linear(4, 4).to(device)

        def step(x):
            loss = above(x).square().mean()
            loss.backward()
            return loss.detach()

        step = pianola.graphed(step) if graphed else step
        for i in range(6):
            step(below + torch.randn(2, 4, generator=torch.Generator().manual_seed(i)).to(device))
        return below.grad, above.weight.grad, step

    (a, b, step), (c, d, _) = train(True), train(False)
    assert torch.equal(a, c) and torch.equal(b, d)
    assert "input 0 requires grad" in step.info().signatures[0].reason
