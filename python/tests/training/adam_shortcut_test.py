"""Steps with Adam and AdamW: replays compute their numbers without running their Python, while all that decides is as it was."""

import cProfile
import os
import pstats
import sys

import pytest
import torch

import pianola
from twins import assert_same

STEPS = 20
RUNS = 8  # of its Python, at most: the warm-up, the capture, and two replays that are looked at


@pytest.fixture
def count(monkeypatch):
    """How often the Python of Adam has run, by any optimizer."""
    module, runs = sys.modules["torch.optim.adam"], []
    original = module._multi_tensor_adam

    def counted(*args, **kwargs):
        runs.append(1)
        return original(*args, **kwargs)

    monkeypatch.setattr(module, "_multi_tensor_adam", counted)
    return runs


class Training:
    def __init__(self, device, graphed, kind=torch.optim.AdamW, groups=False, scheduler=False, **options):
        torch.manual_seed(3)
        self.device = device
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4), torch.nn.PReLU()).to(device)
        parameters = list(self.model.parameters())
        if groups:
            parameters = [{"params": parameters[:2]}, {"params": parameters[2:], "betas": (0.8, 0.99), "weight_decay": 0.0}]
        self.optimizer = optimizer = kind(parameters, **{"lr": 1e-2, "foreach": True, **options})
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20) if scheduler else None
        model, scheduler = self.model, self.scheduler

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            return loss.detach()

        self.step = pianola.graphed(step) if graphed else step

    def train(self, first, last):
        batches = (torch.randn(4, 8, generator=torch.Generator().manual_seed(i)) for i in range(first, last))
        return [self.step(x.to(self.device)) for x in batches]

    def left(self):
        state = self.optimizer.state_dict()
        return [*self.model.parameters(), *(value for entries in state["state"].values() for value in entries.values())]


def train_both(device, change=None, **options):
    """In the middle `change` is called for each of them."""
    graphed, eager = Training(device, True, **options), Training(device, False, **options)
    for one in (graphed, eager):
        one.losses = one.train(0, STEPS)
        if change is not None:
            change(one)
        one.losses += one.train(STEPS, 2 * STEPS)
    for i, (one, other) in enumerate(zip(graphed.losses, eager.losses, strict=True)):
        assert_same(f"loss {i}", one, other)
    for one, other in zip(graphed.left(), eager.left(), strict=True):
        assert_same("what is left", one, other)
    return graphed


EAGER = 2 * STEPS  # runs of the twin


def set_counts(one, count):
    for entries in one.optimizer.state.values():
        entries["step"].fill_(count)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight_decay": 0},
        {"kind": torch.optim.Adam},
        {"kind": torch.optim.Adam, "weight_decay": 0.1, "amsgrad": True},
        {"kind": torch.optim.Adam, "maximize": True},
        {"scheduler": True},
    ],
    ids=str,
)
def test_their_python_runs_in_the_first_calls_alone(device, count, options):
    graphed = train_both(device, **options)
    assert sum(one.replays for one in graphed.step.info().signatures) >= 2 * STEPS - 5
    assert len(count) <= EAGER + RUNS


def test_each_group_has_its_own_numbers(device, count):
    def change(one):
        one.optimizer.param_groups[1]["lr"] = 1e-3

    train_both(device, change, groups=True)
    assert len(count) <= 2 * (EAGER + 2 * RUNS)  # it runs once a group


def test_a_rate_that_is_set_counts_at_once(device, count):
    def change(one):
        one.optimizer.param_groups[0]["lr"] = 3e-3

    train_both(device, change)
    assert len(count) <= EAGER + 2 * RUNS


@pytest.mark.parametrize(
    "setting, value", [("betas", (0.5, 0.9)), ("eps", 1e-3), ("weight_decay", 0.3), ("maximize", True), ("amsgrad", True), ("lr", 1)]
)
def test_other_settings_are_looked_at_anew(device, setting, value):
    """Of for-loops as well, which give numbers as tensors."""

    def change(one):
        one.optimizer.param_groups[0][setting] = value
        if setting == "amsgrad":
            for entries in one.optimizer.state.values():
                entries["max_exp_avg_sq"] = torch.zeros_like(entries["exp_avg_sq"])

    train_both(device, change)
    train_both(device, change, foreach=False)


@pytest.mark.parametrize("count", [3, 0.1])
def test_counts_may_be_set(device, count):
    train_both(device, lambda one: set_counts(one, count))


def test_counts_may_part(device):
    def change(one):
        next(iter(one.optimizer.state.values()))["step"].fill_(2)

    train_both(device, change)


def test_counts_of_one_group_may_be_set(device):
    def change(one):
        for parameter in one.optimizer.param_groups[1]["params"]:
            one.optimizer.state[parameter]["step"].fill_(1)

    train_both(device, change, groups=True)


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("options", [{}, {"eps": 1.0}, {"betas": (0.0, 0.999)}, {"weight_decay": 1.0, "kind": torch.optim.Adam}], ids=str)
def test_counts_may_be_so_high_that_nothing_is_corrected(device, options, foreach):
    """A correction is 1 then, as other numbers may be."""

    def change(one):
        set_counts(one, 100_000)
        one.losses += one.train(STEPS, STEPS + 6)
        set_counts(one, 3)

    train_both(device, change, groups=True, foreach=foreach, **options)


def test_a_count_that_divides_by_zero_is_an_error_as_in_eager(device):
    graphed = Training(device, True)
    graphed.train(0, STEPS)
    set_counts(graphed, -1)
    with pytest.raises(ZeroDivisionError):
        graphed.train(STEPS, STEPS + 1)


def test_parameters_may_share_a_count(device):
    def change(one):
        first, *others = one.optimizer.state.values()
        for entries in others:
            entries["step"] = first["step"]

    train_both(device, change)


def test_counts_may_be_moved_to_other_memory(device):
    def change(one):
        for entries in one.optimizer.state.values():
            entries["step"].data = entries["step"].double()

    train_both(device, change, foreach=False)


def test_a_state_without_counts_is_an_error_as_in_eager(device):
    graphed = Training(device, True)
    graphed.train(0, STEPS)
    for entries in graphed.optimizer.state.values():
        renamed = {"steps" if key == "step" else key: value for key, value in entries.items()}
        entries.clear()
        entries.update(renamed)
    with pytest.raises(KeyError, match="step"):
        graphed.train(STEPS, STEPS + 1)


class Flat(Training):
    """Parameters of two groups that are views of one memory."""

    def __init__(self, device, graphed):
        super().__init__(device, False)
        parameters = list(self.model.parameters())
        flat = torch.cat([one.detach().reshape(-1) for one in parameters])
        for one, values in zip(parameters, flat.split([one.numel() for one in parameters])):
            one.data = values.view_as(one)
        groups = [{"params": parameters[:2]}, {"params": parameters[2:]}]
        self.optimizer = optimizer = torch.optim.AdamW(groups, lr=1e-2, foreach=True)
        rates = [lambda step: 1.0, lambda step: 1.0 if step < 12 else 0.1]
        self.scheduler = scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rates)
        model = self.model

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            scheduler.step()
            return loss.detach()

        self.step = pianola.graphed(step) if graphed else step


def test_rates_of_groups_on_one_memory_may_part(device):
    graphed, eager = Flat(device, True), Flat(device, False)
    for i, (one, other) in enumerate(zip(graphed.train(0, 2 * STEPS), eager.train(0, 2 * STEPS), strict=True)):
        assert_same(f"loss {i}", one, other)


def test_one_parameter_may_be_there_twice(device):
    def make(graphed):
        torch.manual_seed(1)
        one = torch.nn.Parameter(torch.randn(4, 4, device=device))
        one_kernel = device.type == "cpu"  # on a GPU it would update both at once, and eager's own numbers would be a race
        optimizer = torch.optim.AdamW([one, one], lr=1e-2, foreach=one_kernel)

        def step(x):
            optimizer.zero_grad()
            loss = (x @ one).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return pianola.graphed(step) if graphed else step

    with pytest.warns(UserWarning, match="duplicate"):
        graphed, eager = make(True), make(False)
    for i in range(STEPS):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(i)).to(device)
        assert_same(f"loss {i}", graphed(x), eager(x))


def test_betas_that_a_scheduler_moves_are_followed(device, count):
    def make(graphed):
        one = Training(device, False)
        optimizer, model = one.optimizer, one.model
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=100)

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            scheduler.step()
            return loss.detach()

        one.step = pianola.graphed(step) if graphed else step
        return one

    graphed, eager = make(True), make(False)
    for i, (one, other) in enumerate(zip(graphed.train(0, 2 * STEPS), eager.train(0, 2 * STEPS), strict=True)):
        assert_same(f"loss {i}", one, other)
    assert len(count) <= EAGER + RUNS


def test_a_method_that_is_replaced_later_runs(device):
    runs = []

    def change(one):
        original = one.optimizer._init_group
        one.optimizer._init_group = lambda *args: (runs.append(1), original(*args))[1]

    train_both(device, change)
    assert len(runs) == 2 * STEPS


def test_a_state_that_is_loaded_goes_on(device, count):
    def change(one):
        one.optimizer.load_state_dict(one.optimizer.state_dict())

    train_both(device, change)
    assert len(count) <= EAGER + 2 * RUNS


def test_a_tensor_of_the_state_may_be_replaced(device):
    def change(one):
        for entries in one.optimizer.state.values():
            entries["exp_avg"] = torch.zeros_like(entries["exp_avg"])

    train_both(device, change)


def test_a_hook_that_comes_later_runs(device):
    runs = []

    def change(one):
        one.optimizer.register_step_post_hook(lambda *_: runs.append(1))

    train_both(device, change)
    assert len(runs) == 2 * STEPS


def test_a_step_that_is_replaced_later_runs(device, monkeypatch):
    original, runs = torch.optim.AdamW.step, []

    def step(self, closure=None):
        runs.append(1)
        return original(self, closure)

    def change(one):
        monkeypatch.setattr(torch.optim.AdamW, "step", step)

    graphed = Training(device, True)
    graphed.train(0, STEPS)
    change(graphed)
    graphed.train(STEPS, 2 * STEPS)
    assert len(runs) == STEPS


def test_a_kind_of_its_own_runs(device):
    runs = []

    class Mine(torch.optim.AdamW):
        def step(self, closure=None):
            runs.append(1)
            return super().step(closure)

    train_both(device, kind=Mine)
    assert len(runs) >= 2 * 2 * STEPS


def python_of_replays(graphed):
    """The functions of torch.optim that run in ten more calls, which replay."""
    graphed.train(0, STEPS)
    profile = cProfile.Profile()
    with profile:
        graphed.train(STEPS, STEPS + 10)
    assert sum(one.replays for one in graphed.step.info().signatures) >= STEPS + 10 - 5
    functions = pstats.Stats(profile).stats
    return [name for file, _, name in functions if f"{os.sep}optim{os.sep}" in file]


def test_an_optimizer_whose_numbers_stay_does_not_run_at_replays(device):
    """Its first step, which makes its state, is not like the others."""
    assert python_of_replays(Training(device, True, kind=torch.optim.SGD, momentum=0.9)) == []


@pytest.mark.parametrize("foreach", [True, False])
def test_nor_does_adam(device, foreach):
    assert python_of_replays(Training(device, True, foreach=foreach)) == []


@pytest.mark.parametrize("options", [{"capturable": True}, {"fused": True, "foreach": None}], ids=str)
def test_nor_does_one_that_counts_on_the_device(device, options):
    if device.type != "cuda":
        pytest.skip("for GPUs")
    assert python_of_replays(Training(device, True, **options)) == []
