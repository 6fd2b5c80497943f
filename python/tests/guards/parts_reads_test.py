"""What a step reads behind a part that replays run again, and what changes between calls of an optimizer that they run again."""

import types

import pytest
import torch
from torch.optim import lr_scheduler

import pianola
from twins import assert_same


class Average:
    def __init__(self, model):
        self.count = 0
        self.shadow = [p.detach().clone() for p in model.parameters()]

    @torch.no_grad()
    def update(self, model):
        self.count += 1
        for one, p in zip(self.shadow, model.parameters()):
            one.lerp_(p, 1 / self.count)

    def number(self):
        return self.count


def rate_of(optimizer):
    return next(group["lr"] for group in optimizer.param_groups)


def raise_rate(optimizer):
    for group in optimizer.param_groups:
        group["lr"] = max(group["lr"], 6e-3)


READS = {
    "get_last_lr": lambda t: t.scheduler.get_last_lr()[0],
    "a function": lambda t: rate_of(t.optimizer),
    "state_dict": lambda t: t.optimizer.state_dict()["param_groups"][0]["lr"],
    "of the scheduler": lambda t: t.scheduler.state_dict()["last_epoch"],
    "a count": lambda t: (t.average.update(t.model), t.average.number())[1],
    "a hook's count": lambda t: len(t.log),
    "it writes": lambda t: raise_rate(t.optimizer),
}


class Training:
    def __init__(self, device, what, graphed, step_size=5):
        torch.manual_seed(1)
        self.model = torch.nn.Linear(4, 3).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-2)
        self.scheduler = lr_scheduler.StepLR(self.optimizer, step_size, 0.9)
        self.average, self.log = Average(self.model), []
        self.optimizer.register_step_post_hook(lambda *_: self.log.append(None))

        def step(x):
            self.optimizer.zero_grad()
            loss = self.model(x).pow(2).mean()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            return loss.detach(), READS[what](self)

        self.step = pianola.graphed(step, on_fallback=lambda reason: None) if graphed else step


@pytest.mark.parametrize("what", READS)
def test_what_a_part_may_have_written_is_not_frozen(device, what):
    graphed, eager = Training(device, what, True), Training(device, what, False)
    for call in range(20):
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(call)).to(device)
        (loss, seen), (expected, wanted) = graphed.step(x), eager.step(x)
        assert_same(f"loss {call}", loss, expected)
        assert seen == wanted, call
        assert graphed.optimizer.param_groups[0]["lr"] == eager.optimizer.param_groups[0]["lr"]


def test_the_reason_names_what_is_read(device):
    reasons = []
    training = Training(device, "get_last_lr", False)
    step = pianola.graphed(training.step, on_fallback=reasons.append)
    for _ in range(5):
        step(torch.ones(5, 4, device=device))
    assert "behind a step of an optimizer or a scheduler that may change it" in reasons[0] and "[PG803]" in reasons[0]


def twins(device, make, between, calls=18):
    """`make(net)` gives the optimizer and the step; `between(net, optimizer, call)` is done before each call."""
    nets, steps, optimizers = [], [], []
    for wrap in (lambda step: step, lambda step: pianola.graphed(step, on_fallback=lambda reason: None)):
        torch.manual_seed(2)
        net = torch.nn.ModuleDict({name: torch.nn.Linear(4, 2) for name in ("body", "a", "b")}).to(device)
        optimizer, step = make(net)
        nets.append(net), optimizers.append(optimizer), steps.append(wrap(step))
    for call in range(calls):
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(call)).to(device)
        for net, optimizer, step in zip(nets, optimizers, steps):
            between(net, optimizer, call)
            step(x)
        for (name, one), other in zip(nets[1].named_parameters(), nets[0].parameters()):
            assert_same(f"{name}, call {call}", one, other)
            assert_same(f"the gradient of {name}, call {call}", one.grad, other.grad)


def trained(optimizer_of, set_to_none=True):
    def make(net):
        optimizer = optimizer_of(net)

        def step(x):
            optimizer.zero_grad(set_to_none=set_to_none)
            net["a"](x).pow(2).mean().backward()
            optimizer.step()

        return optimizer, step

    return make


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_a_gradient_that_comes_from_outside_is_heeded(device, kind, set_to_none):
    def between(net, optimizer, call):
        if call in (7, 8, 13):
            net["b"].weight.pow(2).sum().backward()

    twins(device, trained(lambda net: kind(net.parameters(), 1e-2), set_to_none), between)


def test_a_parameter_group_that_joins_later_has_its_gradients_cleared(device):
    def make(net):
        optimizer = torch.optim.Adam(net["a"].parameters(), 1e-2)
        scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)

        def step(x):
            optimizer.zero_grad()
            (net["a"](x).pow(2).mean() + net["b"](x).pow(2).mean()).backward()
            optimizer.step()
            scheduler.step()

        return optimizer, step

    def between(net, optimizer, call):
        if call == 8:
            optimizer.add_param_group({"params": list(net["b"].parameters()), "lr": 1e-3, "initial_lr": 1e-3})
        if call == 14:
            optimizer.param_groups[0]["params"].pop()

    twins(device, make, between)


class Rebinding(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, dict(lr=0.1))

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data = p.data - group["lr"] * p.grad


def test_an_optimizer_that_gives_parameters_other_memory_stays_eager(device):
    reasons = []
    twins(device, trained(lambda net: Rebinding(net.parameters())), lambda *_: None, calls=8)
    torch.manual_seed(2)
    model = torch.nn.Linear(4, 2).to(device)
    optimizer = Rebinding(model.parameters())

    @pianola.graphed(on_fallback=reasons.append)
    def step(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    for _ in range(6):
        step(torch.ones(3, 4, device=device))
    assert "[PG401]" in reasons[0]


def test_results_of_types_that_cannot_be_made_anew(device):
    graphed = pianola.graphed(lambda x: types.SimpleNamespace(y=x * 2), on_fallback=lambda reason: None)
    sized = pianola.graphed(lambda x: (x * 2, x.shape))
    for i in range(8):
        x = torch.full((2, 3), float(i), device=device)
        assert torch.equal(graphed(x).y, x * 2)
        y, size = sized(x)
        assert torch.equal(y, x * 2) and type(size) is torch.Size and size == x.shape


def test_an_operation_that_raises_in_a_replay_leaves_the_host_as_eager_does():
    def make(wrap):
        torch.manual_seed(3)
        table = torch.nn.Embedding(8, 4)
        optimizer = torch.optim.Adam(table.parameters(), 1e-2)
        scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)

        def step(i):
            optimizer.zero_grad()
            table(i).pow(2).mean().backward()
            optimizer.step()
            scheduler.step()

        return wrap(step), optimizer, scheduler

    graphed, optimizer, scheduler = make(pianola.graphed)
    eager, other_optimizer, other_scheduler = make(lambda step: step)
    for call in range(14):
        indices = torch.tensor([call % 8, 99 if call in (8, 11) else 1])
        for step in (graphed, eager):
            if call in (8, 11):
                with pytest.raises(IndexError, match="index out of range"):
                    step(indices)
            else:
                step(indices)
        assert scheduler.last_epoch == other_scheduler.last_epoch
        counts = [[float(one["step"]) for one in each.state.values()] for each in (optimizer, other_optimizer)]
        assert counts[0] == counts[1]
    for one, other in zip(optimizer.param_groups[0]["params"], other_optimizer.param_groups[0]["params"]):
        assert torch.equal(one, other)


def test_a_number_that_is_kept_is_saved_as_a_plain_one(device):
    import pickle

    kept = {}

    @pianola.graphed(on_fallback=lambda reason: None)
    def step(x, epoch):
        if "first" not in kept:
            kept["first"] = epoch
        return x * epoch

    for epoch in range(5, 15):
        step(torch.ones(2, device=device), epoch)
    assert type(pickle.loads(pickle.dumps(kept))["first"]) is int
