"""Steps with torch.amp.GradScaler and torch's optimizers as they come: a replay reads whether gradients overflowed, as eager does."""

import math

import pytest
import torch

import pianola
from hand_made import HandMadeAdam
from twins import assert_same

STEPS = 40


@pytest.fixture(autouse=True)
def one_thread():
    """Two threads wait for each other longer than such small work takes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 16), torch.nn.LayerNorm(16))
        self.head = torch.nn.Linear(16, 4)
        self.scale = torch.nn.Parameter(torch.tensor(1.5))  # of one number, as an optimizer's count is

    def forward(self, x):
        return self.head(self.body(x)) * self.scale


OPTIMIZERS = {
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "Adagrad": lambda p: torch.optim.Adagrad(p),
    "Adagrad, fused": lambda p: torch.optim.Adagrad(p, fused=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-3),
    "Adam, fused": lambda p: torch.optim.Adam(p, lr=1e-3, fused=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "AdamW, foreach": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True),
    "AdamW, for-loop": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=False),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
    "Adamax": lambda p: torch.optim.Adamax(p),
    "NAdam": lambda p: torch.optim.NAdam(p),
    "RAdam": lambda p: torch.optim.RAdam(p),
    "RMSprop": lambda p: torch.optim.RMSprop(p, momentum=0.9),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD, momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4),
    "SGD, fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "HandMadeAdam": lambda p: HandMadeAdam(p),
}


class Training:
    """One model, trained by a step as torch's recipes for mixed precision have it."""

    def __init__(self, device, optimizer, way="plain", graphed=True, enabled=True, scheduler=None, init_scale=2.0**8):
        torch.manual_seed(7)
        self.device = device
        self.model = model = Net().to(device)
        self.optimizer = optimizer = optimizer(model.parameters())
        self.scaler = scaler = torch.amp.GradScaler(device.type, init_scale=init_scale, growth_interval=3, enabled=enabled)
        self.scheduler = scheduler = scheduler and scheduler(optimizer)
        dtype = torch.float16 if device.type == "cuda" else torch.bfloat16

        def loss_of(x, y):
            with torch.autocast(device.type, dtype=dtype):
                return torch.nn.functional.cross_entropy(model(x), y)

        def plain(x, y):
            optimizer.zero_grad()
            loss = loss_of(x, y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if scheduler is not None:
                scheduler.step()
            return loss.detach()

        def clipped(x, y):
            loss = loss_of(x, y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            return loss.detach()

        def accumulated(x, y):
            for half, target in zip(x.chunk(2), y.chunk(2)):
                loss = loss_of(half, target) / 2
                scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            return loss.detach()

        self.step = {"plain": plain, "clipped": clipped, "accumulated": accumulated}[way]
        if graphed:
            self.step = pianola.graphed(self.step)

    def train(self, first, last, overflows=()):
        losses = []
        for i in range(first, last):
            generator = torch.Generator().manual_seed(i)
            x, y = torch.randn(6, 8, generator=generator), torch.randint(0, 4, (6,), generator=generator)
            if i in overflows:
                x[0, 0] = math.inf
            losses.append(self.step(x.to(self.device), y.to(self.device)))
        return losses

    def replays(self):
        return sum(one.replays for one in self.step.info().signatures)

    def reasons(self):
        return [one.reason for one in self.step.info().signatures]


def assert_same_bits(name, one, other):
    """NaN is NaN."""
    if one is None or other is None or not one.is_floating_point():
        return assert_same(name, one, other)
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[one.element_size()]
    assert_same(name, one.contiguous().view(bits), other.contiguous().view(bits))


def assert_alike(one, other):
    for (name, a), b in zip(one.model.named_parameters(), other.model.parameters()):
        assert_same(name, a, b)
        assert_same_bits(f"gradient of {name}", a.grad, b.grad)
    mine, theirs = one.optimizer.state_dict(), other.optimizer.state_dict()
    assert mine["param_groups"] == theirs["param_groups"]
    assert mine["state"].keys() == theirs["state"].keys()
    for key, state in theirs["state"].items():
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                assert_same(f"{key}.{name}", mine["state"][key][name], value)
            else:
                assert mine["state"][key][name] == value, (key, name)
    assert one.scaler.state_dict() == other.scaler.state_dict()
    assert len(one.scaler.__dict__.get("_per_optimizer_states", ())) == len(other.scaler.__dict__.get("_per_optimizer_states", ()))
    if one.scheduler is not None:
        assert one.scheduler.state_dict() == other.scheduler.state_dict()


def train_both(device, optimizer, overflows=(), steps=STEPS, **options):
    graphed, eager = Training(device, optimizer, **options), Training(device, optimizer, graphed=False, **options)
    for i in range(steps):
        (one,), (other,) = graphed.train(i, i + 1, overflows), eager.train(i, i + 1, overflows)
        assert_same_bits(f"loss {i}", one, other)
        if i in overflows or i - 1 in overflows:
            assert_alike(graphed, eager)
    assert_alike(graphed, eager)
    return graphed, eager


WAYS = ["plain", "clipped", "accumulated"]


CASES = [(name, WAYS[i % 3]) for i, name in enumerate(OPTIMIZERS)]


@pytest.mark.parametrize("name, way", sorted({*CASES, *(("AdamW", way) for way in WAYS)}))
def test_they_replay_with_their_defaults(device, name, way):
    if name == "Adagrad, fused" and device.type != "cpu":
        pytest.skip("torch has it on the CPU alone")
    graphed, eager = train_both(device, OPTIMIZERS[name], overflows=(5, 6, 20), way=way)
    assert graphed.replays() >= 30, graphed.reasons()
    if name == "HandMadeAdam":
        assert graphed.optimizer.log == eager.optimizer.log == list(range(1, STEPS - 2))


@pytest.mark.parametrize("name", ["AdamW", "HandMadeAdam", "AdamW, fused"])
@pytest.mark.parametrize("call", range(7))
def test_any_call_may_overflow(device, name, call):
    """The first ones, those that warm up, the one that is captured, and the first replay."""
    graphed, eager = train_both(device, OPTIMIZERS[name], overflows=(call,), way=WAYS[call % 3], steps=16)
    assert graphed.replays() >= 7, graphed.reasons()
    if name == "HandMadeAdam":
        assert graphed.optimizer.log == eager.optimizer.log


@pytest.mark.parametrize("overflow", [2, 3, 4, 9])
def test_hooks_of_an_optimizer_run_where_it_steps(device, overflow):
    counts = []

    def with_hooks(parameters):
        optimizer = torch.optim.AdamW(parameters, lr=1e-3)
        calls = {"before": 0, "after": 0}
        counts.append(calls)

        def before(optimizer, args, kwargs):
            calls["before"] += 1
            optimizer.param_groups[0]["lr"] = 1e-3 / calls["before"]

        def after(optimizer, args, kwargs):
            calls["after"] += 1

        optimizer.register_step_pre_hook(before)
        optimizer.register_step_post_hook(after)
        return optimizer

    graphed, _ = train_both(device, with_hooks, overflows=(overflow,), steps=16)
    assert counts == [{"before": 15, "after": 15}] * 2 and graphed.replays() >= 8, graphed.reasons()


def test_the_first_calls_may_overflow_until_the_scale_fits(device):
    graphed, _ = train_both(device, OPTIMIZERS["AdamW"], overflows=range(6), init_scale=2.0**16)
    assert graphed.replays() >= 28, graphed.reasons()


@pytest.mark.parametrize("call", range(3, 7))
def test_schedulers_go_on_where_the_optimizer_does_not(device, call):
    graphed, _ = train_both(
        device,
        OPTIMIZERS["AdamW"],
        overflows=(call, 12),
        steps=20,
        scheduler=lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.01, total_steps=50),
    )
    assert graphed.replays() >= 12, graphed.reasons()


@pytest.mark.parametrize("overflows", [(), (4,), (9, 10)])
def test_one_scaler_for_two_optimizers(device, overflows):
    """Where the gradients of one overflow, the other steps."""

    def both(graphed):
        torch.manual_seed(3)
        a, b = Net().to(device), Net().to(device)
        first, second = torch.optim.AdamW(a.parameters(), lr=1e-3), torch.optim.Adam(b.parameters(), lr=2e-3, betas=(0.5, 0.9))
        scaler = torch.amp.GradScaler(device.type, init_scale=2.0**8, growth_interval=3)

        def step(x, y):
            first.zero_grad()
            scaler.scale(a(x).square().mean()).backward()
            scaler.step(first)
            second.zero_grad()
            scaler.scale((b(y) - a(x).detach()).square().mean()).backward()
            scaler.step(second)
            scaler.update()

        step = pianola.graphed(step) if graphed else step
        for i in range(STEPS):
            x, y = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(i))
            if i in overflows:
                y[0, 0] = math.nan
            step(x.to(device), y.to(device))
        counts = [one["step"] for optimizer in (first, second) for one in optimizer.state.values()]
        return [*a.parameters(), *b.parameters(), *counts, scaler._scale, scaler._growth_tracker], step

    (mine, step), (theirs, _) = both(True), both(False)
    for one, other in zip(mine, theirs):
        assert_same("parameter", one, other)
    assert sum(one.replays for one in step.info().signatures) >= 30


def test_an_optimizer_that_steps_twice_under_one_scaler(device):
    def train(graphed, overflow):
        torch.manual_seed(3)
        model = Net().to(device)
        optimizer = HandMadeAdam(model.parameters())
        scaler = torch.amp.GradScaler(device.type, init_scale=2.0**8, growth_interval=3)

        def step(x):
            for one in x:
                optimizer.zero_grad()
                scaler.scale(model(one).square().mean()).backward()
                scaler.step(optimizer)
                scaler.update()

        step = pianola.graphed(step) if graphed else step
        for i in range(12):
            x = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(i))
            if i == overflow[0]:
                x[overflow[1], 0, 0] = math.inf
            step(x.to(device))
        return model, optimizer, scaler, step

    for call in (2, 3, 4, 6):
        for half in (0, 1):
            (a, mine, one, step), (b, theirs, other, _) = train(True, (call, half)), train(False, (call, half))
            for p, q in zip(a.parameters(), b.parameters()):
                assert_same("parameter", p, q)
            assert mine.log == theirs.log and one.state_dict() == other.state_dict()
            assert sum(one.replays for one in step.info().signatures) >= 6


def test_a_scaler_that_is_off_is_free(device):
    graphed, _ = train_both(device, OPTIMIZERS["AdamW"], enabled=False, way="clipped")
    assert graphed.replays() >= 35, graphed.reasons()


def test_states_are_saved_and_loaded_in_the_middle(device):
    graphed, eager = train_both(device, OPTIMIZERS["AdamW"], overflows=(7,), steps=20)
    for one in (graphed, eager):
        saved = {"model": one.model.state_dict(), "optimizer": one.optimizer.state_dict(), "scaler": one.scaler.state_dict()}
        saved = torch.utils._pytree.tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, saved)
        one.train(20, 25, overflows=(22,))
        one.model.load_state_dict(saved["model"])
        one.optimizer.load_state_dict(saved["optimizer"])
        one.scaler.load_state_dict(saved["scaler"])
        one.last = one.train(25, 40)
    for one, other in zip(graphed.last, eager.last):
        assert_same("loss", one, other)
    assert_alike(graphed, eager)


def test_a_growth_factor_that_is_changed_counts_at_the_next_call(device):
    graphed, eager = train_both(device, OPTIMIZERS["SGD"], steps=12)
    for one in (graphed, eager):
        one.scaler.set_growth_factor(4.0)
        one.scaler.set_growth_interval(2)
        one.train(12, 24)
    assert_alike(graphed, eager)
    assert graphed.replays() >= 12


def decided(scaler, scheduler, before):
    if before <= scaler.get_scale():
        scheduler.step()


def decided_by_name(scaler, scheduler, before):
    skip = before > scaler.get_scale()
    if not skip:
        scheduler.step()


def train_deciding(device, graphed, decide, overflows=(), optimizer=OPTIMIZERS["AdamW"], steps=24):
    """The step of one that asks whether the scale fell."""
    training = Training(device, optimizer, graphed=False, scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 3, gamma=0.5))
    model, optimizer, scaler, scheduler = training.model, training.optimizer, training.scaler, training.scheduler

    def step(x, y):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        before = scaler.get_scale()
        scaler.update()
        decide(scaler, scheduler, before)
        return loss.item()

    training.step = pianola.graphed(step) if graphed else step
    training.losses = training.train(0, steps, overflows)
    return training


@pytest.mark.parametrize("name", ["AdamW", "SGD, momentum", "AdamW, fused"])
@pytest.mark.parametrize("decide", [decided, decided_by_name])
@pytest.mark.parametrize("overflows", [(), (2, 9), (3,), (4, 5), (5,)], ids=str)
def test_schedulers_wait_where_the_scale_fell(device, name, decide, overflows):
    graphed = train_deciding(device, True, decide, overflows, OPTIMIZERS[name])
    eager = train_deciding(device, False, decide, overflows, OPTIMIZERS[name])
    assert list(map(repr, graphed.losses)) == list(map(repr, eager.losses))
    assert_alike(graphed, eager)
    assert graphed.replays() >= 16, graphed.reasons()


def with_an_else(scaler, scheduler, before):
    if before <= scaler.get_scale():
        scheduler.step()
    else:
        scheduler.last_epoch += 0


def with_more_in_it(scaler, scheduler, before):
    if before <= scaler.get_scale():
        scheduler.step()
        scaler.is_enabled()


def the_other_way(scaler, scheduler, before):
    if before > scaler.get_scale():
        scheduler.step()


def kept_for_later(scaler, scheduler, before):
    scaler.fell = before > scaler.get_scale()


def as_a_number(scaler, scheduler, before):
    if int(before) <= scaler.get_scale():
        scheduler.step()


@pytest.mark.parametrize("decide", [with_an_else, with_more_in_it, the_other_way, kept_for_later, as_a_number])
def test_other_decisions_on_the_scale_stay_eager(device, decide):
    graphed = train_deciding(device, True, decide, (5, 8), steps=12)
    eager = train_deciding(device, False, decide, (5, 8), steps=12)
    assert list(map(repr, graphed.losses)) == list(map(repr, eager.losses))
    assert_alike(graphed, eager)
    assert graphed.replays() == 0 and any("[PG" in reason for reason in graphed.reasons())


def test_the_scale_may_be_returned(device):
    def train(graphed):
        training = Training(device, OPTIMIZERS["SGD"], graphed=False)
        model, optimizer, scaler = training.model, training.optimizer, training.scaler

        def step(x, y):
            optimizer.zero_grad()
            scaler.scale(torch.nn.functional.cross_entropy(model(x), y)).backward()
            scaler.step(optimizer)
            scaler.update()
            return {"scale": scaler.get_scale()}

        training.step = pianola.graphed(step) if graphed else step
        training.losses = training.train(0, 16, (6,))
        return training

    graphed, eager = train(True), train(False)
    assert graphed.losses == eager.losses
    assert graphed.replays() >= 10, graphed.reasons()


def test_a_capture_that_fails_takes_the_step_back(device):
    """The scaler and its optimizers know nothing of it."""

    def train(graphed):
        torch.manual_seed(3)
        model = Net().to(device)
        optimizer = HandMadeAdam(model.parameters())
        scaler = torch.amp.GradScaler(device.type, init_scale=2.0**8, growth_interval=3)

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            if pianola._C.is_recording():
                raise ValueError("not while it is captured")
            scaler.update()
            return loss.detach()

        step = pianola.graphed(step) if graphed else step
        losses = [step(torch.randn(4, 8, generator=torch.Generator().manual_seed(i)).to(device)) for i in range(10)]
        return losses, model, optimizer, scaler, step

    (mine, a, one, scaler, step), (theirs, b, other, eager_scaler, _) = train(True), train(False)
    for x, y in zip(mine, theirs):
        assert_same("loss", x, y)
    for p, q in zip(a.parameters(), b.parameters()):
        assert_same("parameter", p, q)
    assert one.log == other.log and scaler.state_dict() == eager_scaler.state_dict()
    assert "not while it is captured" in step.info().signatures[0].reason
