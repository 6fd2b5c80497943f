"""Steps that draw tensors from torch's generator of the CPU. On a GPU they are drawn before the call; on the CPU by the graph, but where
a test has them drawn before the call as well."""

import pytest
import torch

import pianola
from pianola import _drawn_tensors, _draws
from draws_test import Training
from twins import assert_same

CALLS = 40


@pytest.fixture(params=["before the call", "by the graph"], autouse=True)
def drawn(request, device, monkeypatch):
    """Where tensors of the CPU are drawn."""
    before = request.param == "before the call"
    if not before and device.type != "cpu":
        pytest.skip("a graph of a GPU draws nothing on the CPU")
    monkeypatch.setattr(_draws, "takes_tensors", lambda device: before)
    return request.param


def train_both(device, augment, calls=CALLS, size=lambda call: 8, between=lambda call: None, more=lambda call: ()):
    trained = []
    for graphed in (False, True):
        training, seen = Training(device, augment, graphed), []
        torch.manual_seed(11)
        for call in range(calls):
            between(call)
            state = torch.get_rng_state()
            generator = torch.Generator().manual_seed(call)
            x, y = torch.randn(size(call), 6, generator=generator), torch.randint(0, 3, (size(call),), generator=generator)
            assert torch.equal(torch.get_rng_state(), state)
            seen.append((training.step(x.to(device), y.to(device), *more(call)), torch.rand(2)))  # the caller draws as well
        trained.append((training, seen))
    (eager, expected), (graphed, seen) = trained
    for call, (ours, others) in enumerate(zip(seen, expected)):
        for name, one, other in zip(("loss", "drawn by the caller"), ours, others):
            assert_same(f"{name} {call}", one, other)
    for (name, one), other in zip(graphed.model.named_parameters(), eager.model.parameters()):
        assert_same(name, one, other)
    return graphed


def mixup(x):
    share = torch.rand(x.shape[0], 1).to(x.device)
    return share * x + (1 - share) * x[torch.randperm(x.shape[0]).to(x.device)], 1.0


def flow(x):
    t = torch.rand((x.size(0),), dtype=torch.float32).to(x)
    return x * t[:, None], torch.randn(1).to(x.device) * 0.1 + 1


def shuffled(x):
    return x + 0.1 * torch.randn(6, device="cpu").cuda() if x.is_cuda else x + 0.1 * torch.randn(6, device="cpu"), 1.0


@pytest.mark.parametrize("augment", [mixup, flow, shuffled])
def test_what_a_step_draws_on_the_cpu_is_drawn_before_it(device, augment):
    graphed = train_both(device, augment)
    assert graphed.replays() >= CALLS - 16, graphed.step.info()
    assert graphed.reasons == []


def test_a_smaller_last_batch_draws_less(device):
    graphed = train_both(device, mixup, calls=60, size=lambda call: 5 if call % 5 == 4 else 8)
    assert graphed.replays() >= 30, graphed.step.info()


def skips_at_times(x):
    """As LayerDrop does."""
    for _ in range(2):
        probability = torch.rand([])
        if probability < 0.2:
            continue
        x = x.tanh()
    return x, 1.0


def flips(x):
    if torch.rand(1) < 0.5:
        x = x.flip(1)
    if torch.rand(1).item() > 0.8:
        x = -x
    return x, 1.0


def scaled(x):
    return x * torch.rand(1).item(), torch.randint(1, 4, (1,)).item()


@pytest.mark.parametrize("augment", [skips_at_times, flips, scaled])
def test_a_tensor_of_one_number_may_decide(device, augment, drawn):
    graphed = train_both(device, augment, calls=80)
    if drawn == "before the call":  # else it is read from the graph's own draw
        assert graphed.replays() >= 20, graphed.step.info()


def test_it_compares_as_the_tensor_does():
    """0.1 is another number in float32, and so is each that is drawn."""
    for limit in (0.1, 0.3, 0.7, 1e300, float("inf"), 1):
        one = torch.tensor(float(limit))
        watched, use = _drawn_tensors.watched(one)
        for compare in (torch.Tensor.lt, torch.Tensor.le, torch.Tensor.gt, torch.Tensor.ge):
            assert bool(compare(watched, limit)) == bool(compare(one, limit))
        assert use.is_number or limit > 1e30
    watched, use = _drawn_tensors.watched(torch.tensor([0.7]))
    assert not (watched < 0.5) and not ((watched < 0.5) >= 1) and (watched < 0.5).dtype == torch.bool
    assert not use.is_number


def becomes_a_tensor(x, late):
    drawn = torch.rand(1)
    return (x * drawn.to(x.device) if late else x.flip(1) if drawn < 0.5 else x), torch.rand(1).item()


def is_compared_with_another_number(x, late):
    return (x.flip(1) if torch.rand(1) < (0.6 if late else 0.5) else x), torch.rand(1).item()


def is_asked_for_its_value(x, late):
    drawn = torch.rand(1)
    return (x * drawn.item() if late else x.flip(1) if drawn < 0.5 else x), torch.rand(1).item()


@pytest.mark.parametrize("augment", [becomes_a_tensor, is_compared_with_another_number, is_asked_for_its_value])
def test_one_that_is_used_otherwise_later_is_as_in_eager(device, augment):
    train_both(device, augment, calls=60, more=lambda call: (call > 30,))


def in_place(x):
    return x + torch.rand(6).mul_(2).to(x.device), 1.0


def from_what_it_drew(x):
    return x * int(torch.randint(1, 4, (1,))), 1.0


def by_a_generator_of_its_own(x):
    return x + torch.rand(6, generator=torch.Generator().manual_seed(5)).to(x.device), 1.0


def returns_it(x):
    return x, torch.rand(6).sum().to(x.device) + 1


@pytest.mark.parametrize("augment", [in_place, from_what_it_drew, by_a_generator_of_its_own, returns_it])
def test_other_uses_are_as_in_eager(device, augment):
    train_both(device, augment)


def test_a_seed_between_two_calls_counts(device):
    graphed = train_both(device, mixup, between=lambda call: torch.manual_seed(call) if call % 7 == 0 else None)
    assert graphed.replays() > 0


def test_what_is_drawn_may_be_kept_and_returned(device):
    def make():
        kept = []

        def step(x):
            noise, number = torch.randn(4), torch.rand(1)
            kept[:] = [number]
            return x + noise.to(x.device), noise, number

        return step, kept

    results = []
    for graphed in (False, True):
        step, kept = make()
        step = pianola.graphed(step) if graphed else step
        torch.manual_seed(2)
        results.append([(*step(torch.ones(4, device=device)), *kept) for _ in range(12)])
    for ours, others in zip(*results):
        for name, one, other in zip(("result", "noise", "number", "kept"), ours, others):
            assert_same(name, one, other)


def test_what_is_kept_is_a_tensor_after_the_call(device):
    def make():
        kept = {}

        def step(x):
            drawn = torch.rand(1)
            kept["number"], kept["outcome"] = drawn, drawn < 0.5
            return x.flip(0) if kept["outcome"] else x

        return step, kept

    seen = []
    for graphed in (False, True):
        step, kept = make()
        step, x = pianola.graphed(step) if graphed else step, torch.arange(4.0, device=device)
        torch.manual_seed(2)
        seen.append([(step(x).tolist(), bool(kept["outcome"]), kept["outcome"].item(), kept["number"].item()) for _ in range(12)])
    assert seen[0] == seen[1]


def test_nothing_stays_in_torch(device):
    before = {name: getattr(torch, name) for name in ("rand", "randn", "randint", "randperm", "normal")}
    train_both(device, mixup, calls=10)
    assert {name: getattr(torch, name) for name in before} == before
