"""Optimizers that read values of the device in each step: a replay stops there, and goes on with what was read."""

import types

import pytest
import torch

import pianola
from plain_optimizers_test import OPTIMIZERS, STEPS, train_both
from twins import assert_same


class Lars(torch.optim.Optimizer):
    """Layer-wise rates: You et al., Large Batch Training of Convolutional Networks (2017), for the layers' first weights."""

    def __init__(self, params, lr=0.1, momentum=0.9, trust=1e-3):
        super().__init__(params, dict(lr=lr, momentum=momentum, trust=trust))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for i, p in enumerate(group["params"]):
                rate = group["lr"]
                if i < 4:
                    rate *= group["trust"] * p.norm().item() / (p.grad.norm().item() + 1e-8)
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                momentum.mul_(group["momentum"]).add_(p.grad, alpha=rate)
                p.sub_(momentum)


class Clips(torch.optim.Optimizer):
    """Clips where the norm of all gradients is large, and counts how often it did."""

    def __init__(self, params, lr=0.05, largest=1.05):
        super().__init__(params, dict(lr=lr))
        self.largest, self.clipped, self.norms = largest, 0, []

    @torch.no_grad()
    def step(self, closure=None):
        params = self.param_groups[0]["params"]
        norm = torch.nn.utils.get_total_norm([p.grad for p in params]).item()
        self.norms.append(norm)
        if norm > self.largest:
            self.clipped += 1
            for p in params:
                p.grad.mul_(self.largest / norm)
        for p in params:
            p.sub_(p.grad, alpha=self.param_groups[0]["lr"])


class Drops(torch.optim.Optimizer):
    """Leaves out a step whose gradients are not finite."""

    def __init__(self, params):
        super().__init__(params, dict(lr=0.05))
        self.steps = 0

    @torch.no_grad()
    def step(self, closure=None):
        params = self.param_groups[0]["params"]
        if not torch.stack([p.grad.sum() for p in params]).isfinite().all().item():
            return
        self.steps += 1
        for p in params:
            p.sub_(p.grad, alpha=self.param_groups[0]["lr"] / self.steps)


def train(model, optimizer, x):
    """One step; the loss, and what the optimizer's step returns."""
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    return loss, optimizer.step()


def linear(device, optimizer, *layers):
    """A model, and an optimizer of it whose step is run at each replay from the start on, since it has a scheduler."""
    torch.manual_seed(5)
    model = torch.nn.Sequential(*(layers or [torch.nn.Linear(4, 4)])).to(device)
    made = optimizer(model.parameters())
    torch.optim.lr_scheduler.StepLR(made, 5)
    return model, made


def run_twins(make, device, calls=20):
    """As eager in each call: the loss and the model. make() gives a step and the model. @return  What pianola.graphed made."""
    (step, model), (twin, expected) = make(), make()
    graphed = pianola.graphed(step)
    for call in range(calls):
        x, weight = torch.linspace(-1, call, 16, device=device).reshape(4, 4), torch.tensor(0.5 + call / 7, device=device)
        assert_same(f"loss {call}", graphed(x, weight), twin(x, weight))
        for (name, one), other in zip(model.named_parameters(), expected.parameters()):
            assert_same(f"{name} {call}", one, other)
    return graphed


READERS = {"Lars": Lars, "Clips": Clips, "Drops": Drops}


@pytest.mark.parametrize("scheduler", ["none", "cosine"])
@pytest.mark.parametrize("name", READERS)
def test_those_of_a_user_stay_eager(device, name, scheduler):
    """A capture takes what was read the call before, and is made once more: what else they do, nobody could take back."""
    graphed, eager = train_both(device, READERS[name], steps=40, scheduler=scheduler)
    for key in ("clipped", "norms", "steps"):
        assert getattr(graphed.optimizer, key, None) == getattr(eager.optimizer, key, None)
    assert graphed.replays() == 0
    assert "aten::item returns a value of a tensor to the host" in graphed.reasons()[0]


def test_those_of_torch_replay(device):
    """Adafactor reads two norms for each parameter. On a CPU they could be counts of its own, and are refused."""

    def make():
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).to(device)
        optimizer = torch.optim.Adafactor(model.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)

        def step(x):
            loss, _ = train(model, optimizer, x)
            scheduler.step()
            return loss

        return step, model, optimizer

    (step, model, optimizer), (twin, expected, other) = make(), make()
    graphed = pianola.graphed(step)
    for call in range(30):
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(call)).to(device)
        assert_same(f"call {call}", graphed(x), twin(x))
        for (name, one), two in zip(model.named_parameters(), expected.parameters()):
            assert_same(f"{name} {call}", one, two)
            assert optimizer.state[one]["step"] == other.state[two]["step"]
    replays = sum(one.replays for one in graphed.info().signatures)
    assert (replays == 0) if device.type == "cpu" else (replays >= 24), [one.reason for one in graphed.info().signatures]


class Average:
    """Counts where nobody could take it back."""

    def __init__(self, model, log):
        self.model, self.updates, self.log = model, 0, log
        self.shadow = [p.detach().clone() for p in model.parameters()]

    @torch.no_grad()
    def update(self):
        self.updates += 1
        self.log.append(self.updates)
        decay = min(0.99, (1 + self.updates) / (10 + self.updates))
        for one, p in zip(self.shadow, self.model.parameters()):
            one.mul_(decay).add_(p, alpha=1 - decay)


def test_nothing_of_a_user_runs_behind_a_read(device):
    def make():
        torch.manual_seed(3)
        model, log = torch.nn.Linear(6, 1).to(device), []
        optimizer = torch.optim.Adafactor(model.parameters(), lr=1e-2)
        torch.optim.lr_scheduler.StepLR(optimizer, 5)
        average = Average(model, log)

        def step(x):
            loss, _ = train(model, optimizer, x)
            average.update()
            return loss

        return step, average

    (step, mine), (twin, other) = make(), make()
    graphed = pianola.graphed(step)
    for call in range(20):
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(call)).to(device)
        assert_same(f"call {call}", graphed(x), twin(x))
    assert mine.log == other.log
    for one, two in zip(mine.shadow, other.shadow):
        assert_same("average", one, two)
    reasons = [one.reason for one in graphed.info().signatures]
    expected = "aten::item" if device.type == "cpu" else "would call it twice"
    assert any(expected in reason for reason in reasons), reasons


def test_one_that_reads_very_often_stays_eager(device):
    graphed, _ = train_both(device, lambda p: torch.optim.Adafactor(p, lr=1e-2))
    assert graphed.replays() == 0
    assert "aten::item" in graphed.reasons()[0]


def test_one_that_keeps_its_count_on_the_device(device):
    graphed, _ = train_both(device, lambda p: torch.optim.ASGD(p, lr=0.05, lambd=1e-3))
    assert graphed.replays() >= STEPS - 6, graphed.reasons()


def test_one_whose_count_on_the_device_decides(device):
    """ASGD averages from its twelfth step on: what it does is another thing then."""
    graphed, _ = train_both(device, lambda p: torch.optim.ASGD(p, lr=0.05, lambd=0.0, t0=12), steps=40, warmup=5)
    assert graphed.replays() >= 20, graphed.reasons()


def test_an_average_whose_count_is_on_the_device(device):
    def make():
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1)).to(device)
        average = torch.optim.swa_utils.AveragedModel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x):
            loss, _ = train(model, optimizer, x)
            average.update_parameters(model)
            return loss

        return step, model, average

    (step, *mine), (twin, *others) = make(), make()
    graphed = pianola.graphed(step)
    for call in range(30):
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(call)).to(device)
        assert_same(f"call {call}", graphed(x), twin(x))
    for one, other in zip(mine, others):
        for (name, value), expected in zip(one.state_dict().items(), other.state_dict().values()):
            assert_same(name, value, expected)
    assert sum(one.replays for one in graphed.info().signatures) >= 20, [one.reason for one in graphed.info().signatures]


def test_a_state_that_is_loaded_is_read(device):
    """The count of the device is another one then."""

    def make():
        model = torch.nn.Linear(4, 4).to(device)
        torch.nn.init.constant_(model.weight, 0.5)
        torch.nn.init.constant_(model.bias, 0.1)
        optimizer = OPTIMIZERS["ASGD"](model.parameters())

        def step(x):
            train(model, optimizer, x)

        return step, model, optimizer

    (step, model, optimizer), (twin, expected, other) = make(), make()
    graphed = pianola.graphed(step)
    x = torch.linspace(-1, 1, 16, device=device).reshape(4, 4)
    early = None
    for call in range(30):
        if call == 3:
            early = {key: value.clone() for key, value in other.state_dict()["state"][0].items() if torch.is_tensor(value)}
        if call == 20:
            for one in (optimizer, other):
                state = one.state_dict()
                for entries in state["state"].values():
                    entries["step"] = early["step"].clone()
                one.load_state_dict(state)
        graphed(x), twin(x)
        assert_same(f"weight {call}", model.weight, expected.weight)


class Reads(torch.optim.SGD):
    """Reads what the step stored in it."""

    @torch.no_grad()
    def step(self, closure=None):
        rate = 1e-2 * self.weight.item()
        for p in self.param_groups[0]["params"]:
            p.sub_(p.grad, alpha=rate)


class Uses(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p.sub_(p.grad * self.weight, alpha=1e-2)


@pytest.mark.parametrize("kind", [Reads, Uses])
@pytest.mark.parametrize("scale", [1, 2])
def test_what_a_step_stores_in_an_optimizer_is_there_when_it_steps(device, kind, scale):
    def make():
        model, optimizer = linear(device, lambda p: kind(p, lr=0.1))

        def step(x, weight):
            optimizer.weight = weight if scale == 1 else weight * scale
            return train(model, optimizer, x)[0]

        return step, model

    expected_reason = "changes optimizer.weight" if kind is Uses else "aten::item"
    assert expected_reason in run_twins(make, device).info().signatures[0].reason


class UsesElsewhere(torch.optim.SGD):
    """Uses what the step stored in an object that both know."""

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p.sub_(p.grad * self.known.weight, alpha=1e-2)


@pytest.mark.parametrize("known", ["object", "model"])
def test_what_a_step_stores_where_an_optimizer_of_a_user_looks(device, known):
    def make():
        model, optimizer = linear(device, lambda p: UsesElsewhere(p, lr=0.1))
        optimizer.known = types.SimpleNamespace() if known == "object" else model

        def step(x, weight):
            optimizer.known.weight = weight * 2
            return train(model, optimizer, x)[0]

        return step, model

    run_twins(make, device)


class Logs(torch.optim.SGD):
    """Keeps what it computes."""

    def __init__(self, params):
        super().__init__(params, lr=0.1)
        self.log = []

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            update = p.grad * 0.1
            p.sub_(update)
        self.log.append(update)


def test_what_an_optimizer_keeps_is_its_own_where_a_replay_throws(device):
    if device.type == "cuda":
        pytest.skip("an index out of range ends the process's use of the GPU")

    def make():
        model, optimizer = linear(device, Logs)
        table = torch.arange(12.0).reshape(6, 2)

        def step(x, i):
            return train(model, optimizer, x)[0] + torch.nn.functional.embedding(i, table).sum()

        return step, model, optimizer

    (step, model, mine), (twin, expected, other) = make(), make()
    graphed = pianola.graphed(step)
    for call in range(20):
        x, i = torch.linspace(-1, call, 16).reshape(4, 4), torch.tensor([9 if call == 10 else 2])
        for function in (graphed, twin):
            try:
                function(x, i)
            except IndexError:
                assert call == 10
        assert_same(f"weight {call}", model[0].weight, expected[0].weight)
    for call, (one, two) in enumerate(zip(mine.log, other.log)):
        assert_same(f"log {call}", one, two)


class Counts(torch.optim.SGD):
    def __init__(self, params):
        super().__init__(params, lr=0.1)
        self.count = 0

    def step(self, closure=None):
        super().step()
        self.count += 1
        return self.count


RETURNED = {"the count": lambda loss, count: (loss, count), "a comparison": lambda loss, count: {"loss": loss, "late": count > 3}}


@pytest.mark.parametrize("name", RETURNED)
def test_what_an_optimizer_returns_and_the_function_too(device, name):
    def make():
        model, optimizer = linear(device, Counts)
        return lambda x: RETURNED[name](*train(model, optimizer, x))

    step, graphed = make(), pianola.graphed(make())
    for call in range(20):
        x = torch.linspace(-1, call, 16, device=device).reshape(4, 4)
        (loss, value), (expected, other) = [one.values() if isinstance(one, dict) else one for one in (graphed(x), step(x))]
        assert_same(f"loss {call}", loss, expected)
        assert value == other, call
    assert "returns a value of the host" in graphed.info().signatures[0].reason
