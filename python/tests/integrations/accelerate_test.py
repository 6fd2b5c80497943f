"""A step with an Accelerator, graphed and not: the same losses, rates and weights, bit for bit."""

import logging
import math

import pytest
import torch

accelerate = pytest.importorskip("accelerate")

import pianola  # noqa: E402
from pianola.integrations.accelerate import graphed  # noqa: E402

EPOCHS, WIDTH, COUNT = 3, 16, 8 * 10 - 3  # samples: the last batch is smaller

SCHEDULES = {
    "none": lambda optimizer: None,
    "cosine": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50),
    "one cycle": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=100),
    "one cycle that ends early": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=17),
    "lambda": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda number: 1 / (number + 1)),
}


class Training:
    """A model, what trains it, and one step as the documentation of accelerate writes it."""

    def __init__(self, device, schedule="cosine", clip=True, accumulate=True, **options):
        torch.manual_seed(0)
        accelerate.state.AcceleratorState._reset_state(True)
        accelerate.state.GradientState._reset_state()
        scaled = options.pop("scaled", False)
        self.accelerator = accelerate.Accelerator(cpu=device.type == "cpu", **options)
        if scaled:
            self.accelerator.scaler = torch.amp.GradScaler(device.type, init_scale=1024.0)
        model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 32), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        scheduler = SCHEDULES[schedule](optimizer)
        x = torch.randn(COUNT, WIDTH, generator=torch.Generator().manual_seed(1))
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x[:, :4].argmax(1)), batch_size=8)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(model, optimizer, loader)
        self.scheduler = None if scheduler is None else self.accelerator.prepare(scheduler)
        self.clip, self.accumulate, self.weight = clip, accumulate, 1.0

    def work(self, x, y):
        loss = torch.nn.functional.cross_entropy(self.model(x), y) * self.weight
        self.accelerator.backward(loss)
        if self.clip and self.accelerator.sync_gradients:
            self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def step(self, x, y):
        if not self.accumulate:
            return self.work(x, y)
        with self.accelerator.accumulate(self.model):
            return self.work(x, y)

    def train(self, step):
        losses, rates = [], []
        for epoch in range(EPOCHS):
            self.weight = 0.5 if epoch == 1 else 1.0
            for x, y in self.loader:
                losses.append(step(x, y).item())
                rates.append(self.optimizer.param_groups[0]["lr"])
            self.evaluate(losses)
        return losses, rates

    @torch.no_grad()
    def evaluate(self, losses):
        self.model.eval()
        losses += [self.model(x).sum().item() for x, _ in self.loader]
        self.model.train()


def both(device, wrap=lambda training: training.step, **what):
    """Trains twice and compares; returns the signatures of the graphed step."""
    plain = Training(device, **what)
    losses, rates = plain.train(wrap(plain))
    other = Training(device, **what)
    step = graphed(other.accelerator)(wrap(other))
    assert other.train(step) == (losses, rates) and len(losses) >= 20
    for (name, one), theirs in zip(plain.model.state_dict().items(), other.model.state_dict().values()):
        assert torch.equal(one, theirs), name
    if plain.scheduler is not None:
        assert plain.scheduler.scheduler._step_count == other.scheduler.scheduler._step_count
        assert "step" not in vars(other.scheduler)
    assert plain.accelerator.step == other.accelerator.step
    assert "_do_sync" not in vars(other.accelerator)
    return step.info().signatures


CASES = {
    **{f"schedule: {name}": dict(schedule=name) for name in SCHEDULES},
    "without accumulate()": dict(accumulate=False),
    "accumulation": dict(gradient_accumulation_steps=3),
    "accumulation, no clipping": dict(gradient_accumulation_steps=2, clip=False, schedule="one cycle"),
    "bfloat16": dict(mixed_precision="bf16"),
}


@pytest.mark.parametrize("case", CASES)
def test_losses_rates_and_weights_are_those_of_eager(device, case):
    signatures = both(device, **CASES[case])
    assert [one.reason for one in signatures if one.reason] == []
    assert sum(one.replays for one in signatures) >= 8


def test_a_step_that_looks_at_its_loss_replays(device):
    def careful(training):
        def step(x, y):
            loss = training.step(x, y)
            if not math.isfinite(loss.item()):
                raise FloatingPointError(f"loss is {loss.item()}")
            return loss

        return step

    signatures = both(device, careful)
    assert [one.reason for one in signatures if one.reason] == []
    assert sum(one.replays for one in signatures) >= 8


def test_a_step_whose_shapes_follow_values_stays_eager_and_says_so_once(device, caplog):
    def chooses(training):
        def step(x, y):
            chosen = x[:, 0] > 0
            return training.step(x[chosen], y[chosen])

        return step

    with caplog.at_level(logging.WARNING, "pianola"):
        signatures = both(device, chooses)
    assert [one.replays for one in signatures if one.reason] == [0]  # of the full batches; the last batch is always the same
    (said,) = [record.getMessage() for record in caplog.records if record.name == "pianola"]
    assert "aten::index indexes with a mask" in said


def test_a_step_whose_gradients_are_scaled_stays_eager_and_says_so_once(device, caplog):
    with caplog.at_level(logging.WARNING, "pianola"):
        assert both(device, scaled=True) == []
    (said,) = [record.getMessage() for record in caplog.records if record.name == "pianola"]
    assert said.startswith("Training.step runs eagerly: gradients are scaled")


def test_a_step_that_accumulates_at_times_is_refused(device):
    training = Training(device)

    @graphed(training.accelerator)
    def step(x, y, accumulate):
        training.accumulate = accumulate
        return training.step(x, y)

    x, y = next(iter(training.loader))
    step(x, y, True)
    with pytest.raises(pianola.UsageError, match="entered accelerator.accumulate\\(\\) 0 times, and 1 times in its first call"):
        step(x, y, False)


def test_what_is_no_accelerator_is_refused():
    with pytest.raises(pianola.UsageError, match="needs the Accelerator, got a function"):
        graphed(lambda: None)
