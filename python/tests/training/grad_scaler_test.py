"""pianola.GradScaler against torch.amp.GradScaler with fused optimizers, bit for bit."""

import copy
import re

import pianola
import pytest
import torch
from pianola.optim import SGD, AdamW
from twins import MLP, assert_same, batches

OPTIONS = {"init_scale": 1024.0, "growth_interval": 3}


def rate(value, device):
    """What makes torch's fused kernels take the learning rate from the device."""
    return torch.tensor(value, device=device)


def optimizers(kind, model, device):
    """Pianola's, and torch's for the same model."""
    if kind == "sgd":
        return SGD, lambda p: torch.optim.SGD(p, lr=rate(0.1, device), momentum=0.9, fused=True), {
            "lr": 0.1,
            "momentum": 0.9,
        }
    return AdamW, lambda p: torch.optim.AdamW(p, lr=rate(0.01, device), fused=True, capturable=True), {"lr": 0.01}


class Twins:
    """The same training with Pianola and with torch; the batch decides which gradients overflow."""

    def __init__(self, kind, device, unscale=False, clip=None):
        self.ours = MLP(width=8, layers=2).to(device)
        self.torchs = copy.deepcopy(self.ours)
        make, make_torch, options = optimizers(kind, self.ours, device)
        self.optimizer = make(self.ours.parameters(), **options)
        self.torch_optimizer = make_torch(self.torchs.parameters())
        self.scaler = pianola.GradScaler(device, **OPTIONS)
        self.torch_scaler = torch.amp.GradScaler(device.type, **OPTIONS)
        self.x = torch.zeros(4, 8, device=device)
        self.unscale, self.clip = unscale, clip

    def feed(self, batch, factor=1.0):
        self.x.copy_(batch * factor)

    def our_step(self):
        self.optimizer.zero_grad()
        self.loss = self.ours(self.x).square().mean()
        self.scaler.scale(self.loss).backward()
        if self.unscale:
            self.scaler.unscale_(self.optimizer)
        if self.clip is not None:
            pianola.clip_grad_norm_(self.ours.parameters(), self.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def torch_step(self):
        self.torch_optimizer.zero_grad()
        self.torch_loss = self.torchs(self.x).square().mean()
        self.torch_scaler.scale(self.torch_loss).backward()
        if self.unscale:
            self.torch_scaler.unscale_(self.torch_optimizer)
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.torchs.parameters(), self.clip, foreach=True)
        self.torch_scaler.step(self.torch_optimizer)
        self.torch_scaler.update()

    def assert_same(self, when):
        assert_same(f"loss {when}", self.loss, self.torch_loss)
        for (name, a), b in zip(self.ours.named_parameters(), self.torchs.parameters()):
            assert_same(f"{name} {when}", a, b)
        assert self.scaler.state_dict() == self.torch_scaler.state_dict(), when


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
@pytest.mark.parametrize(
    "unscale, clip", [(False, None), (True, None), (True, 0.5)], ids=["fused", "unscaled", "clipped"]
)
@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
def test_scale_tracker_and_parameters_equal_torchs(device, kind, unscale, clip, captured):
    twins = Twins(kind, device, unscale, clip)
    data = batches(14, (4, 8), device)
    step = twins.our_step
    # torch's first step makes its state; ours have it from the start.
    for number in range(2):
        twins.feed(data[number])
        step()
        twins.torch_step()
    if captured:
        graph = pianola.Graph(device)
        graph.capture(step)
        step = graph.replay
    for number in range(2, 14):
        twins.feed(data[number], float("inf") if number in (5, 6, 9) else 1.0)
        step()
        twins.torch_step()
        if number not in (5, 6, 9):
            twins.assert_same(f"in step {number}")
        else:
            assert twins.scaler.get_scale() == twins.torch_scaler.get_scale()
    assert twins.scaler.skipped_steps.item() == 3
    assert twins.scaler.skipped_steps.dtype == torch.int64


def test_its_state_goes_to_torch_and_back(device):
    scaler, torchs = pianola.GradScaler(device, **OPTIONS), torch.amp.GradScaler(device.type)
    scaler.update(64.0)
    torchs.load_state_dict(scaler.state_dict())
    assert torchs.state_dict() == scaler.state_dict()
    assert torchs.get_scale() == 64.0
    other = pianola.GradScaler(device)
    other.load_state_dict({**torchs.state_dict(), "_growth_tracker": 2})
    assert other.state_dict() == {**scaler.state_dict(), "_growth_tracker": 2}
    assert other.get_growth_interval() == 3
    assert other.growth_tracker.item() == 2


def test_scales_what_torch_scales(device):
    scaler = pianola.GradScaler(device, init_scale=8.0)
    one = torch.ones(2, device=device)
    scaled = scaler.scale([one, (one, [one])])
    assert isinstance(scaled, list) and isinstance(scaled[1], tuple)
    assert torch.equal(scaled[1][1][0], one * 8)
    assert scaler.scale(torch.ones((), dtype=torch.bfloat16, device=device)).dtype == torch.float32, "as torch"
    off = pianola.GradScaler(device, enabled=False)
    assert off.scale(one) is one or torch.equal(off.scale(one), one)
    assert off.get_scale() == 1.0 and off.state_dict() == {} and not off.is_enabled()


def test_a_new_scale_is_a_number_or_a_tensor(device):
    scaler = pianola.GradScaler(device)
    scaler.update(4.0)
    assert scaler.get_scale() == 4.0
    scaler.update(torch.tensor([2.0], device=device))
    assert scaler.get_scale() == 2.0


def test_an_optimizer_of_torchs_is_refused(device):
    scaler = pianola.GradScaler(device)
    weight = torch.nn.Parameter(torch.ones(2, device=device))
    scaler.scale(weight.sum()).backward()
    optimizer = torch.optim.Adam([weight])
    for call in (scaler.step, scaler.unscale_):
        with pytest.raises(pianola.UsageError, match="was given torch's Adam, which does not take found_inf") as raised:
            call(optimizer)
        assert "torch.amp.GradScaler" in raised.value.fix
    with pytest.raises(pianola.UsageError, match="takes an optimizer of Pianola's, got list"):
        scaler.step([weight])


def test_calls_in_the_wrong_order_are_refused(device):
    scaler = pianola.GradScaler(device)
    weight = torch.nn.Parameter(torch.ones(2, device=device))
    optimizer = SGD([weight], lr=0.1)
    with pytest.raises(pianola.UsageError, match=re.escape("update() was called before step()")):
        scaler.update()
    with pytest.raises(pianola.UsageError, match="for an optimizer without gradients"):
        scaler.step(optimizer)
    scaler.scale(weight.sum()).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(pianola.UsageError, match=re.escape("unscale_() was called for this optimizer before")):
        scaler.unscale_(optimizer)
    scaler.abandon_step()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()


def test_wrong_values_are_named(device):
    with pytest.raises(pianola.UsageError, match="growth_factor must be above 1, got 1"):
        pianola.GradScaler(device, growth_factor=1.0)
    scaler = pianola.GradScaler(device)
    with pytest.raises(pianola.UsageError, match="'scale' in the state_dict must be a number, got String"):
        scaler.load_state_dict({**scaler.state_dict(), "scale": None})
    with pytest.raises(pianola.UsageError, match="outputs to scale must be tensors in lists and tuples, got float"):
        scaler.scale(1.0)
