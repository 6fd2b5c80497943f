"""Attributes and entries that each call gives a tensor that it made: replays store there what eager does."""

import pytest
import torch

import pianola


class Attention(torch.nn.Module):
    """As in the annotated transformer: the last weights stay, to be looked at."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.weights = None

    def forward(self, x):
        scores = self.linear(x)
        self.weights = scores.softmax(-1)
        return (self.weights * x).sum()


class Losses(Attention):
    def forward(self, x):
        self.weights = self.linear(x)
        self.loss = self.weights.mean()
        self.loss = self.loss + self.weights.pow(2).mean()


def trains(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = model(x)
        loss = model.loss if loss is None else loss
        loss.backward()
        optimizer.step()

    return step


def infers(model):
    @torch.no_grad()
    def step(x):
        model(x)

    return step


class Twins:
    """The same step on two models, one of them graphed."""

    def __init__(self, device, make_model, make_step, **options):
        self.models = [make_model().to(device) for _ in range(2)]
        self.models[1].load_state_dict(self.models[0].state_dict())
        self.said = []
        self.eager = make_step(self.models[0])
        self.graphed = pianola.graphed(make_step(self.models[1]), on_fallback=self.said.append, **options)

    def step(self, x):
        return self.eager(x), self.graphed(x)

    def check(self, *names):
        for name in names:
            one, other = (getattr(model, name) for model in self.models)
            assert one is other is None or torch.equal(one, other), name
        assert all(map(torch.equal, self.models[0].parameters(), self.models[1].parameters()))

    @property
    def replays(self):
        return sum(one.replays for one in self.graphed.info().signatures)


@pytest.mark.parametrize("make_step", [trains, infers])
@pytest.mark.parametrize("kind", [Attention, Losses])
def test_attributes_keep_what_this_call_made(kind, make_step, device):
    twins = Twins(device, kind, make_step)
    for _ in range(12):
        twins.step(torch.randn(3, 4, device=device))
        twins.check("weights", *(["loss"] if kind is Losses else []))
    assert twins.replays >= 8 and not twins.said


def test_attributes_with_a_history_down_to_the_input(device):
    twins = Twins(device, Attention, lambda model: lambda x: model(x))
    for _ in range(12):
        x = torch.randn(3, 4, device=device)
        inputs = [x.clone().requires_grad_() for _ in range(2)]
        for function, given in zip((twins.eager, twins.graphed), inputs):
            function(given).backward()
        twins.check("weights")
        assert torch.equal(inputs[0].grad, inputs[1].grad)
    assert twins.replays >= 4 and not twins.said


class Returns(Attention):
    def forward(self, x):
        self.loss = self.linear(x).mean()
        return self.loss


class Adversary(torch.nn.Module):
    """As pix2pix: each method reads what another one has stored."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def generate(self):
        self.fake = self.linear(self.real)

    def judge(self):
        self.difference = self.fake - self.real
        self.loss = self.difference.pow(2).mean()

    def forward(self, x):
        self.real = x
        self.generate()
        self.judge()
        return self.loss


@pytest.mark.parametrize("is_the_same", [False, True])
@pytest.mark.parametrize("make_step", [trains, infers])
def test_methods_that_hand_on_by_attributes(make_step, is_the_same, device):
    twins = Twins(device, Adversary, make_step)
    batches = [torch.randn(3, 4, device=device) for _ in range(16)]
    for batch in batches:
        twins.step(batches[0] if is_the_same else batch)
        twins.check("real", "fake", "difference", "loss")
    assert twins.replays >= 7 and not twins.said


def returns_its_loss(model):
    train = trains(model)

    def step(x):
        train(x)
        return model.loss.detach()

    return step


@pytest.mark.parametrize("warmup", [1, 2, 3, 5])
def test_however_few_warm_up_calls_there_are(warmup, device):
    twins = Twins(device, Returns, returns_its_loss, warmup=warmup)
    for _ in range(14):
        assert torch.equal(*twins.step(torch.randn(3, 4, device=device)))
        twins.check("loss")
    assert twins.replays >= 14 - 2 * (warmup + 1) - 2 and not twins.said


def test_what_is_taken_from_there_stays_as_it_is(device):
    twins = Twins(device, Attention, infers)
    taken = []
    for number in range(12):
        twins.step(torch.randn(3, 4, device=device))
        if number > 6:
            taken.append([model.weights for model in twins.models])
    assert twins.replays == 8 and all(torch.equal(one, other) for one, other in taken)
    assert len({one.data_ptr() for _, one in taken}) == len(taken)


def test_the_backward_pass_may_run_outside(device):
    twins = Twins(device, Attention, lambda model: model.forward)
    for _ in range(12):
        for model, loss in zip(twins.models, twins.step(torch.randn(3, 4, device=device))):
            model.zero_grad()
            (loss + model.weights.pow(2).sum()).backward()
            loss = None
        twins.check("weights")
        assert torch.equal(*(model.linear.weight.grad for model in twins.models))
    assert twins.replays >= 6 and not twins.said


def test_entries_of_a_dict(device):
    kept = {}

    def step(x):
        kept["twice"] = x * 2
        kept["both"] = kept["again"] = x + 1

    graphed = pianola.graphed(step)
    for number in range(12):
        x = torch.full((4,), float(number), device=device)
        graphed(x)
        assert torch.equal(kept["twice"], x * 2) and torch.equal(kept["both"], x + 1) and torch.equal(kept["again"], x + 1)
    assert sum(one.replays for one in graphed.info().signatures) >= 7


class Remembers(Attention):
    """Reads in Python what the call before left."""

    def forward(self, x):
        y = self.linear(x)
        if self.weights is None:
            y = y * 2
        elif self.weights.shape != y.shape:
            y = y * 3
        self.weights = y
        return y.sum()


def test_what_may_be_asked_of_the_old_tensor_is_compared(device):
    twins = Twins(device, Remembers, infers)
    for number in range(48):
        if number in (9, 10, 17, 30):
            for model in twins.models:
                model.weights = None
        twins.step(torch.randn(3 if number < 24 or number % 3 else 5, 4, device=device))
        twins.check("weights")
    assert twins.replays >= 12


class Recurrent(Attention):
    def __init__(self):
        super().__init__()
        self.register_buffer("first", torch.ones(3, 4))
        self.weights = None

    def forward(self, x):
        old = self.first if self.weights is None else self.weights
        self.weights = torch.tanh(self.linear(x) + old.detach())
        return self.weights.sum()


class Shifts(Attention):
    def forward(self, x):
        self.before = self.weights
        self.weights = self.linear(x)
        return self.weights.sum()


class Selects(Attention):
    """Stores in some calls only, as it is told from outside."""

    stores = True

    def forward(self, x):
        y = self.linear(x)
        if self.stores:
            self.weights = y
        return y.sum()


class Views(Attention):
    def forward(self, x):
        if self.weights is not None:
            x = x + 0 * len(self.weights[0])
            self.row = self.weights[0]
        self.weights = self.linear(x)
        return self.weights.sum()


@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize("kind", [Recurrent, Shifts, Views])
def test_an_old_tensor_that_is_used(kind, is_held, device):
    """One that is read is handed on; one that is kept, or a view of it, or that somebody holds, keeps the step eager."""
    twins = Twins(device, kind, infers)
    held = []
    for _ in range(10):
        twins.step(torch.randn(3, 4, device=device))
        twins.check("weights")
        if kind is not Recurrent and hasattr(twins.models[0], "row" if kind is Views else "before"):
            twins.check("row" if kind is Views else "before")
        held += [model.weights for model in twins.models] if is_held else []
    assert (twins.replays > 4) is (kind is Recurrent and not is_held), twins.said


def test_a_store_that_is_left_out_is_another_graph(device):
    twins = Twins(device, Selects, infers)
    for number in range(40):
        for model in twins.models:
            model.stores = number // 8 % 2 == 0
        twins.step(torch.randn(3, 4, device=device))
        twins.check("weights")
    assert twins.replays >= 16 and not twins.said


class Inspects(Attention):
    def forward(self, x):
        y = self.linear(x)
        self.weights = y.softmax(-1).abs()  # no backward pass frees what its history keeps
        return y.sum()


def test_one_whose_history_keeps_other_tensors_stays_eager(device):
    twins = Twins(device, Inspects, trains)
    for _ in range(8):
        twins.step(torch.randn(3, 4, device=device))
        twins.check("weights")
    assert twins.replays == 0 and "PG802" in twins.said[0] and len(twins.said) == 1


class Keeps(Attention):
    def __init__(self, what):
        super().__init__()
        self.what = what

    def forward(self, x):
        self.weights = {"input": x, "view of it": x[1:], "parameter": self.linear.weight.detach(), "twice": x * 2}[self.what]
        return self.linear(x)


@pytest.mark.parametrize("what", ["input", "view of it", "parameter", "twice"])
def test_what_was_there_before_is_stored_as_results_are(what, device):
    twins = Twins(device, lambda: Keeps(what), infers)
    for _ in range(10):
        x = torch.randn(3, 4, device=device)
        twins.step(x)
        twins.check("weights")
        x.add_(1)
        twins.models[0].linear.weight.data.add_(1)
        twins.models[1].linear.weight.data.add_(1)
        twins.check("weights")


class Reads(Keeps):
    """What it has just stored."""

    def forward(self, x):
        self.weights = x
        return self.linear(self.weights).sum()


@pytest.mark.parametrize("make_step", [infers, trains])
@pytest.mark.parametrize("is_the_same", [False, True])
def test_inputs_that_the_caller_holds(is_the_same, make_step, device):
    """`self.real = real`, as GANs are written."""
    twins = Twins(device, lambda: Reads("input"), make_step)
    batches = [torch.randn(3, 4, device=device) for _ in range(14)]
    for number, batch in enumerate(batches):
        twins.step(batches[0] if is_the_same and number < 9 else batch)
        twins.check("weights")
    assert twins.replays >= 5 and not twins.said


@pytest.mark.parametrize("make_step", [infers, trains])
def test_old_ones_that_the_caller_holds(make_step, device):
    twins = Twins(device, Attention, make_step)
    held = []
    for _ in range(10):
        twins.step(torch.randn(3, 4, device=device))
        held.append([model.weights for model in twins.models])
    assert all(torch.equal(one, other) for one, other in held)
    assert twins.replays >= 5 and not twins.said


def test_a_number_may_be_returned_as_well(device):
    def make_step(model):
        train = trains(model)

        def step(x):
            train(x)
            return model.loss.item()

        return step

    twins = Twins(device, Returns, make_step)
    for _ in range(14):
        one, other = twins.step(torch.randn(3, 4, device=device))
        assert type(other) is float and one == other
        twins.check("loss")
    assert twins.replays >= 6 and not twins.said
