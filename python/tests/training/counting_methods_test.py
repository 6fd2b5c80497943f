"""Steps with averages of a model that count their updates on the host: replays run their methods again."""

import copy
import math

import pytest
import torch
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn

import pianola
from twins import assert_same

STEPS = 24
HERE = torch.device("cpu")


@pytest.fixture(autouse=True)
def on_the_device(device):
    global HERE
    HERE = device


def batch(i, size=6):
    return torch.randn(size, 8, generator=torch.Generator().manual_seed(i)).to(HERE)


class LitEma(torch.nn.Module):
    """As in latent diffusion: counts in a buffer, and asks it."""

    def __init__(self, model, decay=0.9999):
        super().__init__()
        self.names = {}
        self.register_buffer("decay", torch.tensor(decay, dtype=torch.float32))
        self.register_buffer("num_updates", torch.tensor(0, dtype=torch.int))
        for name, p in model.named_parameters():
            self.names[name] = name.replace(".", "")
            self.register_buffer(self.names[name], p.clone().detach().data)

    def forward(self, model):
        decay = self.decay
        if self.num_updates >= 0:
            self.num_updates += 1
            decay = min(self.decay, (1 + self.num_updates) / (10 + self.num_updates))
        one_minus_decay = 1.0 - decay
        with torch.no_grad():
            shadow_params = dict(self.named_buffers())
            for key, p in model.named_parameters():
                if p.requires_grad:
                    name = self.names[key]
                    shadow_params[name] = shadow_params[name].type_as(p)
                    shadow_params[name].sub_(one_minus_decay * (shadow_params[name] - p))


class ModelEMA:
    """As in YOLOv5: counts in a Python int, its decay ramps up."""

    def __init__(self, model, decay=0.9999, tau=2000):
        self.ema = copy.deepcopy(model).eval()
        self.updates = 0
        self.decay = lambda x: decay * (1 - math.exp(-x / tau))
        for p in self.ema.parameters():
            p.requires_grad_(False)

    def update(self, model):
        self.updates += 1
        d = self.decay(self.updates)
        msd = model.state_dict()
        for k, v in self.ema.state_dict().items():
            if v.dtype.is_floating_point:
                v *= d
                v += (1 - d) * msd[k].detach()


class InTwoMethods(ModelEMA):
    def _count(self):
        self.updates += 1

    @torch.no_grad()
    def update(self, model):
        self._count()
        d = self.decay(self.updates)
        for average, p in zip(self.ema.parameters(), model.parameters()):
            average.mul_(d).add_(p, alpha=1 - d)


class EverySecond(ModelEMA):
    """Its operations depend on the count."""

    @torch.no_grad()
    def update(self, model):
        self.updates += 1
        if self.updates % 2 == 0:
            for average, p in zip(self.ema.parameters(), model.parameters()):
                average.lerp_(p, 0.1)


AVERAGES = {
    "AveragedModel": AveragedModel,
    "AveragedModel, multi_avg_fn": lambda m: AveragedModel(m, multi_avg_fn=get_ema_multi_avg_fn(0.9)),
    "AveragedModel, avg_fn and buffers": lambda m: AveragedModel(m, avg_fn=get_ema_avg_fn(0.9), use_buffers=True),
    "LitEma": LitEma,
    "ModelEMA": ModelEMA,
    "InTwoMethods": InTwoMethods,
}


def net():
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 1)).to(HERE)


class Training:
    def __init__(self, average, graphed):
        torch.manual_seed(7)
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        scheduler = SWALR(optimizer, swa_lr=1e-3, anneal_epochs=10)
        self.average = average(model)
        update = {AveragedModel: "update_parameters", LitEma: "forward"}.get(type(self.average), "update")
        average = self.average

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            if update == "update_parameters":
                average.update_parameters(model)
            elif update == "forward":
                average(model)
            else:
                average.update(model)
            scheduler.step()
            return loss

        self.model = model
        self.step = pianola.graphed(step) if graphed else step

    def train(self, first, last):
        return [self.step(batch(i)).clone() for i in range(first, last)]

    def state(self):
        average = self.average if isinstance(self.average, torch.nn.Module) else self.average.ema
        return {**{f"model.{k}": v for k, v in self.model.state_dict().items()}, **average.state_dict()}

    def replays(self):
        return sum(one.replays for one in self.step.info().signatures)

    def reasons(self):
        return [one.reason for one in self.step.info().signatures]


def assert_alike(graphed, eager):
    mine = graphed.state()
    for name, value in eager.state().items():
        assert_same(name, mine[name], value)
    assert getattr(graphed.average, "updates", 0) == getattr(eager.average, "updates", 0)


@pytest.mark.parametrize("name", AVERAGES)
def test_an_average_counts_at_each_call(device, name):
    graphed, eager = Training(AVERAGES[name], True), Training(AVERAGES[name], False)
    for _ in range(2):
        for one, other in zip(graphed.train(0, STEPS), eager.train(0, STEPS)):
            assert_same("loss", one, other)
        assert_alike(graphed, eager)
    assert graphed.replays() >= 2 * STEPS - 12, graphed.reasons()


def test_a_count_that_is_set_between_two_calls_is_seen(device):
    average = AVERAGES["AveragedModel" if device.type == "cpu" else "AveragedModel, multi_avg_fn"]
    graphed, eager = Training(average, True), Training(average, False)
    for one in (graphed, eager):
        one.train(0, 12)
        one.average.n_averaged.fill_(0)  # from here on it copies once, and then averages anew
        one.train(12, 20)
    assert_alike(graphed, eager)
    assert graphed.replays() >= 8, graphed.reasons()


def test_a_count_that_decides_what_is_done_is_followed(device):
    graphed, eager = Training(EverySecond, True), Training(EverySecond, False)
    for one in (graphed, eager):
        one.train(0, STEPS)
    assert_alike(graphed, eager)


class Returning(ModelEMA):
    """Tells the step its count: the rest of the step may go by it."""

    def update(self, model):
        self.updates += 1
        return self.updates


def test_a_method_that_returns_its_count_stays_eager(device):
    graphed, eager = Training(Returning, True), Training(Returning, False)
    for one in (graphed, eager):
        one.train(0, STEPS)
    assert_alike(graphed, eager)
    assert graphed.replays() == 0 and "updates" in "".join(graphed.reasons())


def test_a_count_that_the_step_goes_by_stays_eager(device):
    def build(graphed):
        torch.manual_seed(1)
        model = net()
        average = ModelEMA(model)

        def step(x):
            average.update(model)
            return model(x) * average.updates

        return pianola.graphed(step) if graphed else step

    graphed, eager = build(True), build(False)
    with torch.no_grad():
        for i in range(STEPS):
            x = batch(i)
            assert_same(f"call {i}", graphed(x), eager(x))
    assert sum(one.replays for one in graphed.info().signatures) == 0


class Learning:
    """Its method counts, and trains: nothing that can run again without its operations."""

    def __init__(self, model):
        self.model, self.calls = model, 0
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.x = torch.ones(6, 8, device=HERE)

    def learn(self):
        self.calls += 1
        self.optimizer.zero_grad()
        self.model(self.x).square().mean().backward()
        self.optimizer.step()


def test_a_method_that_differentiates_is_not_run_again(device):
    def build(graphed):
        torch.manual_seed(1)
        one = Learning(net())

        def step():
            one.learn()

        return one, pianola.graphed(step) if graphed else step

    (mine, step), (theirs, eager) = build(True), build(False)
    for _ in range(STEPS):
        step()
        eager()
    assert mine.calls == theirs.calls == STEPS
    for one, other in zip(mine.model.parameters(), theirs.model.parameters()):
        assert_same("parameter", one, other)
    assert sum(one.replays for one in step.info().signatures) == 0


class Meter:
    def __init__(self):
        self.count = 0

    def update(self, count):
        self.count += count


def test_a_meter_of_an_inference_counts(device):
    def build(graphed):
        torch.manual_seed(1)
        model, meter = net().eval(), Meter()

        @torch.no_grad()
        def predict(x):
            meter.update(x.shape[0])
            return model(x)

        return meter, pianola.graphed(predict) if graphed else predict

    (mine, predict), (theirs, eager) = build(True), build(False)
    for i in range(STEPS):
        x = batch(i, 4 if i % 8 == 7 else 6)
        assert_same(f"call {i}", predict(x), eager(x))
        assert mine.count == theirs.count
    assert sum(one.replays for one in predict.info().signatures) >= 10, [one.reason for one in predict.info().signatures]


def test_a_meter_of_a_model_whose_backward_pass_runs_outside(device):
    def build(graphed):
        torch.manual_seed(1)
        model, meter = net(), Meter()

        def forward(x):
            meter.update(x.shape[0])
            return model(x).square().mean()

        return model, meter, pianola.graphed(forward) if graphed else forward

    (model, mine, forward), (other, theirs, eager) = build(True), build(False)
    for i in range(STEPS):
        x = batch(i)
        for function in (forward, eager):
            function(x).backward()
        assert mine.count == theirs.count
    for one, two in zip(model.parameters(), other.parameters()):
        assert_same("gradient", one.grad, two.grad)


def test_a_followed_number_that_a_method_is_given(device):
    def build(graphed):
        torch.manual_seed(1)
        model, meter = net().eval(), Meter()

        @torch.no_grad()
        def predict(x, i):
            meter.update(i)
            return model(x)

        return meter, pianola.graphed(predict) if graphed else predict

    (mine, predict), (theirs, eager) = build(True), build(False)
    for i in range(STEPS):
        x = batch(i)
        assert_same(f"call {i}", predict(x, i), eager(x, i))
        assert mine.count == theirs.count


class WithProducts(ModelEMA):
    """Its operations are other ones under autocast, and it leaves gradients to whoever calls it."""

    def update(self, model):
        self.updates += 1
        for average, p in zip(self.ema.parameters(), model.parameters()):
            if p.dim() == 2:
                w = p.detach()
                average.add_((w @ (w.T @ w)).float(), alpha=1e-3 / self.updates)


def test_a_method_runs_again_under_the_modes_that_it_was_called_in(device):
    def build(graphed):
        torch.manual_seed(2)
        model = net()
        average = WithProducts(model)

        def step(x):
            with torch.autocast(device.type, dtype=torch.bfloat16), torch.no_grad():
                model[0].weight.add_(x.mean() * 0.01)
                average.update(model)

        return average, pianola.graphed(step) if graphed else step

    (mine, step), (theirs, eager) = build(True), build(False)
    for i in range(STEPS):
        x = batch(i)
        step(x)
        eager(x)
    for a, b in zip(mine.ema.state_dict().values(), theirs.ema.state_dict().values()):
        assert_same("average", a, b)
    assert sum(one.replays for one in step.info().signatures) >= STEPS - 9, [one.reason for one in step.info().signatures]


def test_two_averages_of_one_class(device):
    def build(graphed):
        torch.manual_seed(2)
        model = net()
        averages = [ModelEMA(model, 0.9), ModelEMA(model, 0.5, tau=3)]
        averages[1].updates = 100

        @torch.no_grad()
        def step(x):
            model[0].weight.add_(x.mean() * 0.01)
            for average in averages:
                average.update(model)

        return averages, pianola.graphed(step) if graphed else step

    (mine, step), (theirs, eager) = build(True), build(False)
    for i in range(STEPS):
        x = batch(i)
        step(x)
        eager(x)
    for one, other in zip(mine, theirs):
        assert one.updates == other.updates
        for a, b in zip(one.ema.state_dict().values(), other.ema.state_dict().values()):
            assert_same("average", a, b)
    assert sum(one.replays for one in step.info().signatures) >= STEPS - 9, [one.reason for one in step.info().signatures]
