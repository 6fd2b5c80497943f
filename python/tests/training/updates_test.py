"""The optimizer's part of a loop as a graph of its own: gradients come from elsewhere, in other tensors at each call."""

import pianola
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from twins import assert_same

STEPS = 20


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.norm, self.head = nn.Embedding(20, 8), nn.LayerNorm(8), nn.Linear(8, 4)
        self.unused = nn.Linear(3, 3)

    def forward(self, ids):
        return self.head(self.norm(self.embedding(ids)))


def train(device, make, graphed, set_to_none=True):
    """Parameters, gradients and what the optimizer keeps, behind each step; and how many updates were replays."""
    torch.manual_seed(1)
    model = Model().to(device)
    optimizer, update = make(model)
    if graphed:
        update = pianola.graphed(update)
    seen = []
    for step in range(STEPS):
        if set_to_none is not None:
            optimizer.zero_grad(set_to_none)
        for microbatch in range(2):
            ids = torch.randint(20, (6,), generator=torch.Generator().manual_seed(2 * step + microbatch)).to(device)
            model(ids).square().mean().backward()
        update()
        kept = [value for state in optimizer.state_dict()["state"].values() for value in state.values()]
        tensors = [*model.parameters(), *(p.grad for p in model.parameters()), *kept]
        seen.append([one.clone() if isinstance(one, torch.Tensor) else one for one in tensors])
    return seen, sum(one.replays for one in update.info().signatures) if graphed else 0


def assert_alike(device, make, **options):
    expected, _ = train(device, make, graphed=False, **options)
    actual, replays = train(device, make, graphed=True, **options)
    for step, (ours, eager) in enumerate(zip(actual, expected)):
        assert len(ours) == len(eager)
        for one, other in zip(ours, eager):
            if isinstance(one, torch.Tensor):
                assert_same(f"step {step}", one, other)
            else:
                assert one == other
    assert replays >= STEPS - 8


OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "SGD with momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01, amsgrad=True),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    "fused AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True),
    "AdamW that maximizes": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, maximize=True, foreach=False),
    "NAdam": lambda parameters: torch.optim.NAdam(parameters, lr=0.01),
    "RAdam": lambda parameters: torch.optim.RAdam(parameters, lr=0.01),
    "Adamax": lambda parameters: torch.optim.Adamax(parameters, lr=0.01),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.01),
    "Adadelta": lambda parameters: torch.optim.Adadelta(parameters, lr=0.5),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.01, momentum=0.9, centered=True),
    "Rprop": lambda parameters: torch.optim.Rprop(parameters, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizers_step(device, name):
    def make(model):
        optimizer = OPTIMIZERS[name](model.parameters())
        return optimizer, lambda: optimizer.step()

    assert_alike(device, make)


def test_an_optimizers_step_where_gradients_stay_in_place(device):
    def make(model):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        return optimizer, lambda: optimizer.step()

    assert_alike(device, make, set_to_none=False)


def test_clipping_and_a_schedule(device):
    def make(model):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)

        def update():
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()
            scheduler.step()

        return optimizer, update

    assert_alike(device, make)


def test_an_update_that_clears_the_gradients(device):
    def make(model):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

        def update():
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()
            optimizer.zero_grad()

        return optimizer, update

    assert_alike(device, make, set_to_none=None)


def test_a_gradient_that_the_loop_keeps_stays_what_it_was(device):
    torch.manual_seed(1)
    model = Model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    update = pianola.graphed(lambda: optimizer.step())
    kept = []
    for step in range(STEPS):
        optimizer.zero_grad()
        ids = torch.randint(20, (6,), generator=torch.Generator().manual_seed(step)).to(device)
        model(ids).square().mean().backward()
        gradient = model.head.weight.grad
        kept.append((gradient, gradient.clone()))
        update()
        assert model.head.weight.grad is gradient
    for gradient, value in kept:
        assert_same("a gradient", gradient, value)
    assert sum(one.replays for one in update.info().signatures) >= STEPS - 6


def test_an_eager_part_that_clips_in_place(device):
    norms = {}

    def make(model):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        own = norms.setdefault(len(norms), [])

        @pianola.eager
        def clip():
            own.append(nn.utils.clip_grad_norm_(model.parameters(), 0.05).item())

        def update():
            clip()
            optimizer.step()

        return optimizer, update

    assert_alike(device, make)
    assert norms[0] == norms[1]


def test_a_hook_of_the_optimizer_is_called_once_a_step(device):
    calls = {}

    def make(model):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        own = calls.setdefault(len(calls), [])
        optimizer.register_step_post_hook(lambda *given: own.append(len(own)))
        return optimizer, lambda: optimizer.step()

    expected, _ = train(device, make, graphed=False)
    actual, _ = train(device, make, graphed=True)
    for ours, eager in zip(actual, expected):
        for one, other in zip(ours, eager):
            if isinstance(one, torch.Tensor):
                assert_same("a tensor", one, other)
    assert calls[0] == calls[1]


class Noted(torch.optim.Optimizer):
    """One of the user's own, which counts on the host and remembers gradients."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})
        self.count, self.last = 0, {}

    @torch.no_grad()
    def step(self):
        self.count += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                before = self.last.get(parameter)
                parameter.sub_(parameter.grad, alpha=group["lr"] / self.count)
                if before is not None:
                    parameter.sub_(before, alpha=0.01)
                self.last[parameter] = parameter.grad


def test_an_optimizer_that_remembers_gradients_is_right(device):
    def make(model):
        optimizer = Noted(model.parameters())
        return optimizer, lambda: optimizer.step()

    expected, _ = train(device, make, graphed=False)
    actual, _ = train(device, make, graphed=True)
    for step, (ours, eager) in enumerate(zip(actual, expected)):
        for one, other in zip(ours, eager):
            assert_same(f"step {step}", one, other)
