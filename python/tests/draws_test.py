"""Steps that draw random numbers of Python or NumPy: they are drawn before the call, and handed on as numbers that change."""

import random
import sys
import threading
from random import random as drawn_directly

import numpy as np
import pytest
import torch

import pianola
from twins import assert_same

CALLS = 32


class Training:
    """A classifier whose step begins with `augment(x, call)`, and gives what that returns to `loss`."""

    def __init__(self, device, augment, graphed):
        torch.manual_seed(3)
        random.seed(4)
        np.random.seed(5)
        self.device, self.reasons = device, []
        self.model = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, 3)).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)

        def step(x, y, *more):
            x, weight = augment(x, *more)
            loss = weight * torch.nn.functional.cross_entropy(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            return loss.detach()

        self.step = pianola.graphed(step, on_fallback=self.reasons.append) if graphed else step

    def call(self, number, *more):
        generator = torch.Generator().manual_seed(number)
        x, y = torch.randn(8, 6, generator=generator), torch.randint(0, 3, (8,), generator=generator)
        return self.step(x.to(self.device), y.to(self.device), *more)

    def replays(self):
        return sum(one.replays for one in self.step.info().signatures)


def outside():
    """What the caller draws itself."""
    return random.random(), np.random.rand(), random.gauss(0, 1)


def train_both(device, augment, calls=CALLS, between=lambda call: None, more=lambda call: ()):
    """Each alone, since both draw from one generator."""
    trained = []
    for graphed in (False, True):
        training = Training(device, augment, graphed)
        seen = []
        for call in range(calls):
            between(call)
            seen.append((training.call(call, *more(call)), outside()))
        trained.append((training, seen))
    (eager, expected), (graphed, seen) = trained
    for call, ((loss, drawn), (expected_loss, expected_drawn)) in enumerate(zip(seen, expected)):
        assert_same(f"loss {call}", loss, expected_loss)
        assert drawn == expected_drawn, call
    for (name, one), other in zip(graphed.model.named_parameters(), eager.model.parameters()):
        assert_same(name, one, other)
    return graphed


def mixup(x):
    share = np.random.beta(0.4, 0.4)
    return share * x + (1 - share) * x.flip(0), share


def sometimes_flipped(x):
    if random.random() < 0.4:
        x = x.flip(1)
    return x, random.uniform(0.5, 1.5)


def noisy(x):
    return x + random.gauss(0, 0.1), max(random.betavariate(1, 2), 0.1) + np.random.normal(scale=0.1)


def of_two_kinds(x):
    return x * (2 if random.randint(0, 1) else 3), 1.0


@pytest.mark.parametrize("augment", [mixup, sometimes_flipped, noisy, of_two_kinds])
def test_what_a_step_draws_is_given_to_its_graph(device, augment):
    graphed = train_both(device, augment)
    assert graphed.replays() >= CALLS - 16, graphed.step.info()
    assert graphed.reasons == []


def test_info_says_what_becomes_of_the_numbers(device):
    graphed = train_both(device, sometimes_flipped)
    text = "\n".join(graphed.step.info().numbers)
    assert "random.uniform, draw 2'] is a parameter of the graph" in text
    assert "random.random, draw 1'] < 0.4" in text


def test_a_seed_between_two_calls_counts(device):
    def seeded(call):
        if call % 7 == 0:
            random.seed(call)
            np.random.seed(call)

    assert train_both(device, noisy, between=seeded).replays() > 0


def test_one_that_draws_more_at_times_stays_eager(device):
    def augment(x):
        if random.random() < 0.3:
            x = x * np.random.uniform(0.5, 1.5)
        return x, random.random()

    graphed = train_both(device, augment)
    assert "[PG604]" in graphed.reasons[-1]


def test_one_that_draws_by_an_argument_is_as_in_eager(device):
    train_both(device, lambda x, alpha: (x, np.random.beta(alpha, alpha)), more=lambda call: (0.2 + 0.3 * (call // 12),))
    train_both(device, lambda x, alpha: (x, np.random.beta(alpha, alpha)), more=lambda call: (0.2 + 0.01 * call,))
    train_both(device, lambda x, alpha: (x, np.random.beta(alpha, 1.0)), more=lambda call: (1 + call % 3,))


def drawn_first():
    return drawn_directly()


@pytest.mark.parametrize(
    "augment",
    [
        lambda x: (x * drawn_first(), 1.0),
        lambda x: (x + torch.as_tensor(np.random.rand(6), dtype=x.dtype, device=x.device), 1.0),
        lambda x: (x[:, np.random.permutation(6).tolist()], 1.0),
        lambda x: (x, random.choice([0.5, 1.5, 2.5])),
        lambda x: (x * np.random.default_rng(7).random(), random.random()),
    ],
    ids=["by another name", "an array", "a permutation", "a choice", "a generator of its own"],
)
def test_other_draws_are_as_in_eager(device, augment):
    train_both(device, augment, calls=12)


def test_a_step_that_seeds_is_as_in_eager(device):
    def augment(x):
        random.seed(11)
        return x, random.random()

    train_both(device, augment, calls=12)


def test_a_step_that_begins_to_draw_in_another_way_is_as_in_eager(device):
    settings = {"late": False}

    def augment(x):
        if settings["late"]:
            return x, random.uniform(0.5, 1.0)
        return x, random.random()

    train_both(device, augment, between=lambda call: settings.update(late=call > 10))


def test_an_error_after_a_draw_leaves_the_generator_as_eager_does(device):
    fails = {"now": False}

    def augment(x):
        first = random.random()
        if fails["now"]:
            raise RuntimeError("no more data")
        return x * first, random.random()

    left = []
    for graphed in (False, True):
        training, seen = Training(device, augment, graphed), []
        for call in range(20):
            fails["now"] = call in (2, 9, 15)
            if fails["now"]:
                with pytest.raises(RuntimeError, match="no more data"):
                    training.call(call)
            else:
                seen.append(training.call(call))
            seen.append(outside())
        left.append(seen)
    for one, other in zip(*left):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_nothing_stays_in_the_modules(device):
    before = {name: value for name, value in vars(random).items()}, dict(vars(sys.modules["numpy.random"]))
    train_both(device, mixup, calls=10)
    assert (dict(vars(random)), dict(vars(sys.modules["numpy.random"]))) == before


def test_drawn_numbers_may_be_returned(device):
    def make():
        random.seed(1)

        def function(x):
            share = random.random()
            return x * share, share, 2 * share > 1

        return function

    eager = make()
    expected = [eager(torch.full((3,), float(i), device=device)) for i in range(16)]
    graphed = pianola.graphed(make())
    for i, (result, share, is_large) in enumerate(expected):
        now = graphed(torch.full((3,), float(i), device=device))
        assert torch.equal(now[0], result) and now[1] == share and now[2] is is_large and type(now[1]) is float
    assert sum(one.replays for one in graphed.info().signatures) >= 6


def test_threads_that_warm_up_at_once_leave_the_modules_as_they_were(device):
    """Who begins first and ends first does not leave the other's stand-ins behind."""
    before = dict(vars(random)), dict(vars(sys.modules["numpy.random"]))

    class Waiting:
        def __init__(self):
            inside, go_on = threading.Event(), threading.Event()

            def function(x):
                inside.set()
                assert go_on.wait(20)
                return x * random.random()

            self.inside, self.go_on = inside, go_on
            self.thread = threading.Thread(target=pianola.graphed(function), args=(torch.ones(2, device=device),))

    both = Waiting(), Waiting()
    for one in both:
        one.thread.start()
        assert one.inside.wait(20)
    for one in both:
        one.go_on.set()
        one.thread.join()
    assert (dict(vars(random)), dict(vars(sys.modules["numpy.random"]))) == before
