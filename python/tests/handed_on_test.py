"""Attributes and entries whose tensor each call makes of the one before, as averages by hand do: replays hand it on as eager does."""

import copy

import pytest
import torch

import pianola
from twins import assert_same, reasons, replays

CALLS = 24


def batch(device, i, size=5):
    return torch.randn(size, 4, generator=torch.Generator().manual_seed(i)).to(device)


class Average(torch.nn.Module):
    """Centres by an average that it keeps: `kind` says where."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.layer = torch.nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))
        self.plain = torch.zeros(4)
        self.entries = {"mean": torch.zeros(4)}
        self.kept = torch.nn.Parameter(torch.zeros(4), requires_grad=False)
        self.trained = torch.nn.Parameter(torch.ones(4))

    def to(self, device):
        super().to(device)
        self.plain = self.plain.to(device)
        self.entries = {name: value.to(device) for name, value in self.entries.items()}
        return self

    def state(self):
        return [self.mean, self.plain, self.entries["mean"], self.kept, self.trained]

    def forward(self, x):
        mean = x.mean(0).detach()
        y = self.layer(x)
        if self.kind == "buffer":
            self.mean = 0.9 * self.mean + 0.1 * mean
            return y - self.mean
        if self.kind == "attribute":
            self.plain = 0.9 * self.plain + 0.1 * mean
            return y - self.plain
        if self.kind == "entry":
            self.entries["mean"] = 0.9 * self.entries["mean"] + 0.1 * mean
            return y - self.entries["mean"]
        if self.kind == "parameter":
            self.kept = torch.nn.Parameter(0.9 * self.kept + 0.1 * mean, requires_grad=False)
            return y - self.kept
        if self.kind == "twice":
            self.mean = 0.9 * self.mean + 0.1 * mean
            self.mean = self.mean / self.mean.norm().clamp_min(1e-6)
            self.plain = self.plain + self.mean
            return y - self.mean + self.plain
        assert self.kind == "parameter that wants grad"  # and gets none, as the codes of a VQ-VAE
        y = y - self.trained.detach()
        self.trained = torch.nn.Parameter(0.9 * self.trained + 0.1 * mean)
        return y


def train_both(device, make, between=lambda model, i, held: None, size=lambda i: 5, calls=CALLS):
    """make(device) gives a model and a step(model, optimizer, x). After each call its result, the model's state and what
    between(model, i, held) has put into `held` are compared with eager. @return  What pianola.graphed made."""
    values = {}
    for graphed in (True, False):
        torch.manual_seed(3)
        model, step = make(device)
        optimizer = torch.optim.SGD(model.layer.parameters(), lr=0.1)
        call = lambda x: step(model, optimizer, x)  # noqa: E731
        if graphed:
            call = made = pianola.graphed(call)
        held, values[graphed] = [], []
        for i in range(calls):
            result = call(batch(device, i, size(i)))
            between(model, i, held)
            values[graphed] += [result, *(one.detach().clone() for one in [*model.state(), *model.parameters(), *held])]
    assert len(values[True]) == len(values[False])
    for i, (one, other) in enumerate(zip(values[True], values[False])):
        assert_same(f"value {i}", one, other)
    return made


def step_of(model, optimizer, x):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def averages(kind, step=step_of):
    return lambda device: (Average(kind).to(device), step)


KINDS = ["buffer", "attribute", "entry", "parameter", "twice", "parameter that wants grad"]


@pytest.mark.parametrize("kind", KINDS)
def test_each_call_makes_it_of_the_one_before(device, kind):
    graphed = train_both(device, averages(kind))
    assert replays(graphed) >= CALLS - 6, reasons(graphed)


@pytest.mark.parametrize("kind", ["buffer", "attribute", "entry"])
def test_who_keeps_one_keeps_its_values(device, kind):
    def keep(model, i, held):
        held += [model.state()[["buffer", "attribute", "entry"].index(kind)]] * (i % 3 == 0)

    train_both(device, averages(kind), keep)


def test_it_may_be_set_between_calls(device):
    def change(model, i, held):
        if i in (8, 14):
            model.mean = torch.full((4,), 2.0, device=device)
        if i in (11, 17):
            model.mean.zero_()
        if i == 19:
            model.load_state_dict(copy.deepcopy(model.state_dict()))

    graphed = train_both(device, averages("buffer"), change)
    assert replays(graphed) >= CALLS - 6, reasons(graphed)


def test_a_loss_with_history_is_returned(device):
    """Its backward pass is over, or does not want what the call found."""

    def step(model, optimizer, x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    graphed = train_both(device, averages("buffer", step))
    assert replays(graphed) >= CALLS - 6, reasons(graphed)


def test_two_sizes_of_batches(device):
    graphed = train_both(device, averages("buffer"), size=lambda i: 3 if i % 4 == 3 else 5, calls=2 * CALLS)
    assert replays(graphed) >= 2 * CALLS - 16, reasons(graphed)


def test_another_shape_now_and_then(device):
    def reshape(model, i, held):
        if i in (9, 16):
            model.mean = torch.zeros(1 if i == 9 else 4, device=device)

    train_both(device, averages("buffer"), reshape)


def test_none_now_and_then(device):
    def step(model, optimizer, x):
        model.plain = x.mean(0) if model.plain is None else 0.9 * model.plain + 0.1 * x.mean(0)
        return step_of(model, optimizer, x - model.plain)

    def forget(model, i, held):
        model.plain = None if i in (9, 15) else model.plain

    def make(device):
        model = Average("buffer").to(device)
        model.state = lambda: [] if model.plain is None else [model.plain]
        return model, step

    train_both(device, make, forget)


def test_one_that_is_returned_too(device):
    def step(model, optimizer, x):
        step_of(model, optimizer, x)
        return model.mean

    def change(model, i, held):
        held[:] = [model.mean]
        if i % 5 == 4:
            held[0].add_(1)

    train_both(device, averages("buffer", step), change)


def test_an_average_of_all_parameters_by_hand(device):
    class Shadow:
        def __init__(self, model):
            self.shadow = {name: value.detach().clone() for name, value in model.named_parameters()}

        def update(self, model):
            for name, value in model.named_parameters():
                average = 0.1 * value.data + 0.9 * self.shadow[name]
                self.shadow[name] = average.clone()

    def make(device):
        model = Average("buffer").to(device)
        shadow = Shadow(model)
        model.state = lambda: [*shadow.shadow.values()]

        def step(model, optimizer, x):
            loss = step_of(model, optimizer, x)
            shadow.update(model)
            return loss

        return model, step

    graphed = train_both(device, make)
    assert replays(graphed) >= CALLS - 6, reasons(graphed)


def train_from_outside(device, make):
    """make() gives a module with a layer and a buffer `scale`. Its backward pass runs outside of what is graphed."""
    left = {}
    for graphed in (True, False):
        torch.manual_seed(3)
        model = make().to(device)
        model = pianola.graphed(model) if graphed else model
        left[graphed] = []
        for i in range(CALLS):
            model.layer.zero_grad()
            found = list(model.parameters())
            model(batch(device, i)).square().mean().backward()
            left[graphed] += [model.scale.clone(), *(None if one.grad is None else one.grad.clone() for one in found)]
    for i, (one, other) in enumerate(zip(left[True], left[False], strict=True)):
        assert_same(f"value {i}", one, other)


def test_a_backward_pass_that_comes_later_finds_what_it_saved(device):
    """`y = x * self.scale; self.scale = ...`: what stays would be written before the backward pass reads it."""

    class Scale(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)
            self.register_buffer("scale", torch.ones(4))

        def forward(self, x):
            y = self.layer(x) * self.scale
            self.scale = 0.9 * self.scale + 0.1 * x.mean(0).detach()
            return y

    train_from_outside(device, Scale)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_inference(device, mode):
    left = {}
    for graphed in (True, False):
        torch.manual_seed(3)
        model = Average("attribute").to(device)

        def step(x):
            with mode():
                return model(x)

        step = pianola.graphed(step) if graphed else step
        left[graphed] = [value for i in range(CALLS) for value in (step(batch(device, i)), model.plain.clone())]
    for i, (one, other) in enumerate(zip(left[True], left[False])):
        assert_same(f"value {i}", one, other)


def test_an_error_leaves_what_eager_leaves(device):
    left = {}
    for graphed in (True, False):
        torch.manual_seed(3)
        model = Average("buffer").to(device)

        def step(x):
            y = model(x)
            return y.reshape(5, 4).sum()

        step = pianola.graphed(step) if graphed else step
        left[graphed] = []
        for i in range(CALLS):
            try:
                left[graphed].append(step(batch(device, i, 3 if i in (2, 12, 20) else 5)).detach())
            except RuntimeError as error:
                assert "shape" in str(error)
            left[graphed].append(model.mean.clone())
    assert len(left[True]) == len(left[False])
    for i, (one, other) in enumerate(zip(left[True], left[False])):
        assert_same(f"value {i}", one, other)


def test_a_method(device):
    class Trainer:
        def __init__(self):
            self.model = Average("buffer").to(device)
            self.momentum = torch.zeros(4, device=device)

        def step(self, x):
            self.momentum = 0.5 * self.momentum + x.mean(0)
            return self.model(x + self.momentum).detach()

    class Graphed(Trainer):
        step = pianola.graphed(Trainer.step)

    left = {}
    for kind in (Graphed, Trainer):
        torch.manual_seed(3)
        trainer = kind()
        left[kind] = [value for i in range(CALLS) for value in (trainer.step(batch(device, i)), trainer.momentum.clone())]
        if kind is Graphed:
            made = trainer.step
    for i, (one, other) in enumerate(zip(left[Graphed], left[Trainer])):
        assert_same(f"value {i}", one, other)
    assert replays(made) >= CALLS - 6, reasons(made)


def returns_the_old_one(model, optimizer, x):
    old = model.mean
    model.mean = 0.9 * model.mean + 0.1 * x.mean(0)
    return old


def returns_a_view_of_the_old_one(model, optimizer, x):
    old = model.mean[:2]
    model.mean = 0.9 * model.mean + 0.1 * x.mean(0)
    return old


def stores_one_twice(model, optimizer, x):
    model.mean = model.plain = 0.9 * model.mean + 0.1 * x.mean(0) + model.plain
    return x.sum()


def stores_the_old_one(model, optimizer, x):
    model.mean, model.plain = model.plain, model.mean + x.mean(0)
    return x.sum()


def stores_a_view_of_the_old_one(model, optimizer, x):
    model.plain = model.mean.view(4)
    model.mean = 0.9 * model.mean + 0.1 * x.mean(0)
    return x.sum()


def stores_what_it_found(model, optimizer, x):
    model.mean = model.mean
    model.mean.mul_(0.9).add_(x.mean(0))
    return model.mean.sum()


def stores_an_expanded_one(model, optimizer, x):
    model.mean = (model.mean[:1] * 0.9 + x.mean()).expand(4)
    return model.mean.sum()


@pytest.mark.parametrize("step", [returns_the_old_one, returns_a_view_of_the_old_one, stores_one_twice, stores_the_old_one,
                                  stores_a_view_of_the_old_one, stores_what_it_found, stores_an_expanded_one])  # fmt: skip
def test_tensors_that_are_in_two_hands(device, step):
    """Who writes to one, writes to both."""

    def change(model, i, held):
        if i % 4 == 3:
            model.mean.mul_(0.5) if model.mean.is_contiguous() else None
        held[:] = [model.mean, model.plain]

    train_both(device, averages("buffer", step), change)


# ---- Who could tell ----


class Scaled(torch.nn.Module):
    """Whose parameter some calls make anew, and others train."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.weight = torch.nn.Parameter(torch.ones(4))
        self.register_buffer("mean", torch.zeros(4))
        self.log, self.keeps = [], False

    def renew(self, x):
        self.weight = torch.nn.Parameter(self.weight.detach() * 0.5)
        return x.sum()

    def train_weight(self, x):
        loss = (x * self.weight).square().sum()
        loss.backward()
        return loss.detach()

    def descend(self, x):
        loss = (x * self.weight).square().sum()
        loss.backward()
        self.weight = torch.nn.Parameter(self.weight.detach() - 0.01 * self.weight.grad)
        return loss.detach()

    def average(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return (x - self.mean).sum()

    def halve_and_average(self, x):
        self.mean.mul_(0.5)
        return self.average(x)

    def log_and_average(self, x):
        if self.keeps:
            self.log.append(self.mean)
        return self.average(x)

    def average_in_training(self, x):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return self.layer(x) - self.mean


def watch(device, program):
    """program(model, graphed, i) makes call i by graphed(method, x), and gives what is compared with eager."""
    values = {}
    for graphs in (True, False):
        torch.manual_seed(3)
        model, made = Scaled().to(device), {}

        def call(name, x):
            if name not in made:
                made[name] = pianola.graphed(getattr(model, name)) if graphs else getattr(model, name)
            return made[name](x)

        values[graphs] = []
        for i in range(CALLS):
            values[graphs] += [None if one is None else one.detach().clone() for one in program(model, call, i, device)]
    assert len(values[True]) == len(values[False])
    for i, (one, other) in enumerate(zip(values[True], values[False])):
        assert_same(f"value {i}", one, other)


def renews_and_trains(model, call, i, device):
    old = model.weight
    call("renew" if i % 7 == 1 else "train_weight", batch(device, i))
    return [model.weight, old.grad, model.weight.grad]


def descends_by_hand(model, call, i, device):
    return [call("descend", batch(device, i)), model.weight, model.weight.grad]


def holds_a_state_dict(model, call, i, device):
    held = model.state_dict() if i % 3 == 0 else {}
    call("halve_and_average", batch(device, i))
    return [model.mean, *held.values()]


def logs_now_and_then(model, call, i, device):
    model.keeps = i in (2, 6, 7, 12, 18)
    call("log_and_average", batch(device, i))
    return [model.mean, *model.log]


def shares_with_another(model, call, i, device):
    if i == 5:
        model.other = model.mean
    call("halve_and_average", batch(device, i))
    return [model.mean, getattr(model, "other", None)]


def evaluates_in_inference_mode(model, call, i, device):
    model.train(i % 4 != 3)
    if model.training:
        y = call("average_in_training", batch(device, i))
    else:
        with torch.inference_mode():
            y = call("average_in_training", batch(device, i))
    model.mean.mul_(1.0)
    return [y, model.mean]


def puts_attributes_on_it(model, call, i, device):
    model.mean.scale = 2.0
    call("average", batch(device, i))
    return [model.mean, torch.tensor(getattr(model.mean, "scale", 0.0))]


def averages_in_two_functions(model, call, i, device):
    return [call("average" if i % 2 else "halve_and_average", batch(device, i)), model.mean]


@pytest.mark.parametrize("program", [renews_and_trains, descends_by_hand, holds_a_state_dict, logs_now_and_then, shares_with_another,
                                     evaluates_in_inference_mode, puts_attributes_on_it, averages_in_two_functions])  # fmt: skip
def test_nobody_can_tell(device, program):
    watch(device, program)


class KeepsByItself(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x * scale

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.scale, None


@pytest.mark.parametrize("how", ["function", "hook", "leaf"])
def test_a_backward_pass_that_comes_later_and_saves_in_its_own_way(device, how):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)
            self.register_buffer("scale", torch.ones(4))
            self.shift = torch.nn.Parameter(torch.zeros(4))

        def forward(self, x):
            scale, y = self.scale, self.layer(x)
            if how == "function":
                y = KeepsByItself.apply(y, scale)
            elif how == "hook":
                y.register_hook(lambda grad: grad * scale)
            else:
                y = y + self.shift
                self.shift = torch.nn.Parameter(self.shift.detach() * 0.9 + 0.1)
            self.scale = 0.9 * self.scale + 0.1 * x.mean(0)
            return y

    train_from_outside(device, Net)


def test_other_writes_keep_it_eager(device):
    log = []

    def step(model, optimizer, x):
        log.append(1)
        return step_of(model, optimizer, x)

    graphed = train_both(device, averages("buffer", step))
    assert replays(graphed) == 0 and "changes log" in "".join(reasons(graphed))
