"""Steps with torch's optimizers as they come: their numbers are computed anew for each replay."""

import pytest
import torch

import pianola
from hand_made import BySign, FusedAdam, HandMadeAdam, KeepsNorms, Lion
from twins import assert_same

STEPS = 24


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 16), torch.nn.LayerNorm(16))
        self.head = torch.nn.Linear(16, 4)
        self.scale = torch.nn.Parameter(torch.tensor([1.5]))  # of one number, as an optimizer's count is

    def forward(self, x):
        return self.head(self.body(x)) * self.scale


OPTIMIZERS = {
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "Adagrad": lambda p: torch.optim.Adagrad(p),
    "Adagrad, decayed": lambda p: torch.optim.Adagrad(p, lr_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-3),
    "Adam, amsgrad": lambda p: torch.optim.Adam(p, lr=1e-3, amsgrad=True, weight_decay=0.01),
    "Adam, foreach": lambda p: torch.optim.Adam(p, lr=1e-3, foreach=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "AdamW, foreach": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
    "Adamax": lambda p: torch.optim.Adamax(p),
    "ASGD": lambda p: torch.optim.ASGD(p),
    "NAdam": lambda p: torch.optim.NAdam(p),
    "RAdam": lambda p: torch.optim.RAdam(p),
    "RMSprop": lambda p: torch.optim.RMSprop(p, momentum=0.9),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=1e-3),
    "BySign": lambda p: BySign(p),
    "AdamW, for-loop": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=False),
    "Muon": lambda p: torch.optim.Muon([one for one in p if one.dim() == 2], lr=1e-2),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD, decayed": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=1e-2),
    "SGD, momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4),
    "FusedAdam": lambda p: FusedAdam(p),
    "Lion": lambda p: Lion(p, weight_decay=0.1),
    "HandMadeAdam": lambda p: HandMadeAdam(p),
    "KeepsNorms": lambda p: KeepsNorms(p),
}

SCHEDULERS = {
    "none": lambda o: None,
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=20),
    "warm-up": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: min(1.0, (step + 1) / 10)),
    "steps": lambda o: torch.optim.lr_scheduler.StepLR(o, step_size=5),
}


class Training:
    """One model and its optimizer, trained by a step as people write it."""

    def __init__(self, device, optimizer, scheduler="none", graphed=True, order="zero first", warmup=3):
        torch.manual_seed(7)
        self.device = device
        self.model = Net().to(device)
        self.optimizer = optimizer(self.model.parameters())
        self.scheduler = SCHEDULERS[scheduler](self.optimizer)
        model, optimizer = self.model, self.optimizer

        def zero_first(x, y):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        def zero_last(x, y):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        self.step = zero_first if order == "zero first" else zero_last
        if graphed:
            self.step = pianola.graphed(self.step, warmup=warmup)

    def train(self, first, last):
        losses = []
        for i in range(first, last):
            generator = torch.Generator().manual_seed(i)
            x, y = torch.randn(6, 8, generator=generator), torch.randint(0, 4, (6,), generator=generator)
            losses.append(self.step(x.to(self.device), y.to(self.device)))
            if self.scheduler is not None:
                self.scheduler.step()
        return losses

    def replays(self):
        return sum(one.replays for one in self.step.info().signatures)

    def reasons(self):
        return [one.reason for one in self.step.info().signatures]


def assert_alike(one, other):
    for (name, a), b in zip(one.model.named_parameters(), other.model.parameters()):
        assert_same(name, a, b)
    mine, theirs = one.optimizer.state_dict(), other.optimizer.state_dict()
    assert mine["param_groups"] == theirs["param_groups"]
    for key, state in theirs["state"].items():
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                assert_same(f"{key}.{name}", mine["state"][key][name], value)
            else:
                assert mine["state"][key][name] == value, (key, name)


def train_both(device, optimizer, steps=STEPS, **options):
    graphed, eager = Training(device, optimizer, **options), Training(device, optimizer, graphed=False, **options)
    for i, (one, other) in enumerate(zip(graphed.train(0, steps), eager.train(0, steps))):
        assert_same(f"loss {i}", one, other)
    assert_alike(graphed, eager)
    return graphed, eager


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_they_replay_with_their_defaults(device, name, scheduler):
    graphed, _ = train_both(device, OPTIMIZERS[name], scheduler=scheduler)
    assert graphed.replays() >= STEPS - 4, graphed.reasons()


@pytest.mark.parametrize("name", ["AdamW", "SGD, momentum", "Lion"])
def test_gradients_may_be_dropped_at_the_end(device, name):
    graphed, _ = train_both(device, OPTIMIZERS[name], order="zero last", scheduler="cosine")
    assert graphed.replays() >= STEPS - 4, graphed.reasons()


def test_what_an_optimizer_logs_it_logs_at_each_call(device):
    graphed, eager = train_both(device, OPTIMIZERS["HandMadeAdam"])
    assert graphed.optimizer.log == eager.optimizer.log == list(range(1, STEPS + 1))


def test_an_average_of_weights_has_a_number_that_is_a_tensor(device):
    """ASGD averages from its third step on, with a factor that it keeps in a tensor."""
    asgd = lambda p: torch.optim.ASGD(p, lr=0.05, t0=0, lambd=0.0, weight_decay=1e-6)  # noqa: E731
    graphed, _ = train_both(device, asgd, warmup=6)
    assert graphed.replays() >= STEPS - 8, graphed.reasons()


def test_what_an_optimizer_keeps_is_its_own(device):
    graphed, eager = train_both(device, OPTIMIZERS["KeepsNorms"])
    assert graphed.replays() >= STEPS - 4, graphed.reasons()
    for one, other in zip(graphed.optimizer.log, eager.optimizer.log):
        assert_same("what was kept in an earlier step", one, other)
    state = graphed.optimizer.state[graphed.model.head.weight]
    assert state["last"].untyped_storage()._cdata == state["first"].untyped_storage()._cdata  # as eager's


def test_hooks_of_an_optimizer_run_at_each_call(device):
    counts = {}

    def with_hook(parameters):
        optimizer = torch.optim.AdamW(parameters, lr=1e-3)
        counts[id(optimizer)] = 0

        def hook(optimizer, args, kwargs):
            counts[id(optimizer)] += 1
            if counts[id(optimizer)] == 12:
                optimizer.param_groups[0]["lr"] = 5e-4

        optimizer.register_step_pre_hook(hook)
        return optimizer

    graphed, eager = train_both(device, with_hook)
    assert list(counts.values()) == [STEPS, STEPS] and graphed.replays() >= STEPS - 8


def test_a_state_that_is_loaded_in_the_middle_goes_on(device):
    graphed, eager = train_both(device, OPTIMIZERS["AdamW"], scheduler="cosine")
    for one in (graphed, eager):
        saved = {"model": one.model.state_dict(), "optimizer": one.optimizer.state_dict()}
        saved = torch.utils._pytree.tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, saved)
        one.train(STEPS, STEPS + 5)
        one.model.load_state_dict(saved["model"])
        one.optimizer.load_state_dict(saved["optimizer"])
        one.last = one.train(STEPS + 5, STEPS + 20)
    for one, other in zip(graphed.last, eager.last):
        assert_same("loss", one, other)
    assert_alike(graphed, eager)


def test_a_parameter_group_that_is_added_is_trained(device):
    graphed, eager = train_both(device, OPTIMIZERS["AdamW"], order="zero last")
    for one in (graphed, eager):
        added = torch.nn.Parameter(torch.ones(3, device=device))
        one.optimizer.add_param_group({"params": [added], "lr": 0.5})
        added.grad = torch.ones(3, device=device)
        one.last = one.train(STEPS, STEPS + 12)
        assert added[0] != 1
    for one, other in zip(graphed.last, eager.last):
        assert_same("loss", one, other)
    assert_alike(graphed, eager)


def train_with_a_late_gradient(name, device, wrap):
    """An eager backward pass beside the step gives one parameter its first gradient, after the step's capture."""
    torch.manual_seed(0)
    early, late = (torch.nn.Parameter(torch.randn(4, 4, device=device)) for _ in range(2))
    optimizer = OPTIMIZERS[name]([early, late])

    @wrap
    def step(x):
        loss = (early * x).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    losses = []
    for i in range(12):
        if i >= 6:
            (late * 2).square().sum().backward()
        losses.append(step(torch.full((4, 4), i + 1.0, device=device)))
    return [*losses, early.detach(), late.detach(), *(one for state in optimizer.state.values() for one in state.values())]


@pytest.mark.parametrize("name", ["SGD, momentum", "RMSprop", "AdamW, fused", "Adagrad", "AdamW"])
def test_a_parameter_may_get_its_first_gradient_late(device, name):
    graphed = train_with_a_late_gradient(name, device, pianola.graphed)
    for one, other in zip(graphed, train_with_a_late_gradient(name, device, lambda step: step), strict=True):
        assert torch.equal(torch.as_tensor(one), torch.as_tensor(other))


def test_a_rate_that_is_changed_by_hand_counts_at_the_next_call(device):
    graphed, eager = train_both(device, OPTIMIZERS["AdamW"])
    for rate in (1e-2, 0.0, 1e-4):
        for one in (graphed, eager):
            one.optimizer.param_groups[0]["lr"] = rate
            one.last = one.train(STEPS, STEPS + 2)
        for one, other in zip(graphed.last, eager.last):
            assert_same("loss", one, other)
    assert_alike(graphed, eager)


class Switching(torch.optim.Optimizer):
    """Decays its weights in the first steps only, and momentum comes later."""

    def __init__(self, params):
        super().__init__(params, dict(lr=0.01, steps=0))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["steps"] += 1
            for p in group["params"]:
                if group["steps"] <= 10:
                    p.mul_(1 - 0.001 * group["steps"])
                p.add_(p.grad, alpha=-group["lr"] / group["steps"])
                if group["steps"] > 14:
                    p.clamp_(-3, 3)


def test_an_optimizer_that_does_something_else_from_some_step_on_is_followed(device):
    graphed, _ = train_both(device, Switching, steps=40)
    assert graphed.replays() >= 20, graphed.reasons()


def test_an_error_of_an_optimizer_leaves_what_eager_would(device):
    def failing(parameters):
        optimizer = torch.optim.AdamW(parameters, lr=1e-3)
        calls = []

        def hook(optimizer, args, kwargs):
            calls.append(1)
            if len(calls) == 15:
                raise ValueError("no step today")

        optimizer.register_step_pre_hook(hook)
        return optimizer

    graphed, eager = Training(device, failing), Training(device, failing, graphed=False)
    for one in (graphed, eager):
        one.train(0, 14)
        with pytest.raises(ValueError, match="no step today"):
            one.train(14, 15)
        one.train(15, 24)
    assert_alike(graphed, eager)


def test_two_optimizers_of_one_step(device):
    def both(graphed):
        torch.manual_seed(3)
        a, b = Net().to(device), Net().to(device)
        first, second = torch.optim.AdamW(a.parameters(), lr=1e-3), torch.optim.Adam(b.parameters(), lr=2e-3, betas=(0.5, 0.9))

        def step(x):
            first.zero_grad()
            a(x).square().mean().backward()
            first.step()
            second.zero_grad()
            (b(x) - a(x).detach()).square().mean().backward()
            second.step()

        step = pianola.graphed(step) if graphed else step
        for i in range(STEPS):
            step(torch.randn(4, 8, generator=torch.Generator().manual_seed(i)).to(device))
        return [*a.parameters(), *b.parameters()], step

    (mine, step), (theirs, _) = both(True), both(False)
    for one, other in zip(mine, theirs):
        assert_same("parameter", one, other)
    assert sum(one.replays for one in step.info().signatures) >= STEPS - 8


class Odd(torch.optim.Optimizer):
    """Gives numbers by which operations choose other kernels, or none at all."""

    POWERS = [2.0, 2.5, 3.0, 0.5, 1.0, 2.0, 0.0, 1.5]

    def __init__(self, params, lr=1e-2):
        super().__init__(params, dict(lr=lr, steps=0))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["steps"] += 1
            steps, rate = group["steps"], group["lr"] / group["steps"]
            for p in group["params"]:
                p.sub_(p.grad.abs().pow(self.POWERS[steps % len(self.POWERS)]), alpha=rate)
                p.add_(torch.full_like(p, 0.0 if steps % 3 == 0 else rate / 100))
                if p.dim() == 2:
                    p.addmm_(p.grad @ p.grad.T, p.grad, beta=1 - rate / 10, alpha=-rate)
                p.clamp_(-3 - rate, 3 + rate)


def test_numbers_for_which_operations_take_other_kernels_are_right(device):
    graphed, _ = train_both(device, Odd, steps=40)
    assert graphed.replays() >= 20, graphed.reasons()


def test_numbers_that_are_none_any_more(device):
    def rate_of(step):
        return [1e-2, 0.0, float("nan"), 1, 1e-3, -0.0, True][step % 7]

    class Rates(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, dict(lr=1e-2, steps=0))

        @torch.no_grad()
        def step(self, closure=None):
            group = self.param_groups[0]
            group["steps"] += 1
            rate = rate_of(group["steps"] if group["steps"] > 9 else 0)
            for p in group["params"]:
                if rate == rate:
                    p.sub_(p.grad, alpha=1e-3 * rate)
                    p.mul_(1 - 1e-3 * rate)

    train_both(device, Rates, steps=30)


class ReadsOnHost(torch.optim.Optimizer):
    """Scales by a norm that it reads."""

    def __init__(self, params):
        super().__init__(params, dict(lr=0.01))
        self.norm = torch.zeros(())

    @torch.no_grad()
    def step(self, closure=None):
        rate = self.param_groups[0]["lr"] / (1 + self.norm.item())
        for p in self.param_groups[0]["params"]:
            p.add_(p.grad, alpha=-rate)
        self.norm.copy_(torch.stack([p.grad.norm() for p in self.param_groups[0]["params"]]).norm())


def test_an_optimizer_that_reads_what_the_step_computes_stays_eager(device):
    graphed, _ = train_both(device, ReadsOnHost)
    assert graphed.replays() == 0
    assert "reads" in graphed.reasons()[0] or "copies between host and device" in graphed.reasons()[0]


class TwoNumbers(torch.optim.Optimizer):
    """One operation is given a list of numbers: the first changes from the start on, the second much later."""

    def __init__(self, params):
        super().__init__(params, {})
        self.calls = 0

    @torch.no_grad()
    def step(self):
        self.calls += 1
        (group,) = self.param_groups
        params = [p for p in group["params"] if p.grad is not None]
        numbers = [0.1 + self.calls * 0.001, 0.03 - max(self.calls - 30, 0) * 1e-4]
        torch._foreach_addcdiv_(params, [p.grad for p in params], [p.abs() + 1 for p in params], [numbers[i % 2] for i in range(len(params))])


def test_a_number_that_begins_to_change_late(device):
    graphed, _ = train_both(device, TwoNumbers, steps=60)
    assert graphed.replays() >= 50, graphed.reasons()
