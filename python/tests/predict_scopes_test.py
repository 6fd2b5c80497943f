"""`pianola.predict_scopes`: what graphs of a step would take, scope by scope."""

import json

import pianola
import pytest
import torch
import torch.nn.functional as F
from layer_programs import training_step
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(size), nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Sequential):
    def __init__(self, size=64, blocks=3):
        super().__init__(nn.Sequential(*(Block(size) for _ in range(blocks))), nn.Linear(size, 10))


SCOPES = ["each layer", "forward and backward", "iteration without optimizer", "whole iteration"]


def trained(model):
    return training_step(model, torch.optim.AdamW(model.parameters(), foreach=True))


def batch(device):
    return torch.randn(512, 64, device=device), torch.randint(10, (512,), device=device)


def forecast_of_training(device, **options):
    return pianola.predict_scopes(trained(Net().to(device)), [batch(device)], device=device, **options)


def test_each_scope_is_told_with_a_verdict(device):
    forecast = forecast_of_training(device)
    assert [one.name for one in forecast.scopes] == SCOPES
    assert not any(one.obstacle for one in forecast.scopes), str(forecast)
    assert [one.graphs for one in forecast.scopes] == [6, 2, 1, 1]
    for one in forecast.scopes:
        assert one.pool_bytes > 0 and one.pool_bytes >= one.scratch_bytes and one.executable_bytes > 0
        assert one.fits is (True if device.type == "cuda" else None) and one.verdict


def test_the_whole_iteration_is_what_predict_memory_tells(device):
    whole = forecast_of_training(device).scopes[-1]
    step = trained(Net().to(device))
    alone = pianola.predict_memory(step, [batch(device)], device=device)
    assert whole.pool_bytes == pytest.approx(alone.pool_bytes, rel=0.05, abs=4 << 20)
    assert whole.copied_bytes == alone.copied_bytes


def test_inputs_are_those_of_the_call_and_what_passes_between_layers(device):
    layers, model, _, whole = forecast_of_training(device).scopes
    given = sum(-(-one.nbytes // 512) * 512 for one in batch(device))
    assert whole.input_bytes == given
    x = 512 * 64 * 4
    assert model.input_bytes >= x, "the labels are the loss's"
    assert layers.input_bytes >= 4 * x, "what each layer is given, and gradients of results"


class Checkpointed(Net):
    def forward(self, x):
        for block in self[0]:
            x = checkpoint(block, x, use_reentrant=True)
        return self[1](x)


@pytest.mark.parametrize("as_one, models", [(True, 1), (False, 4)])
def test_what_a_checkpoint_recomputes_is_no_model_of_its_own(device, as_one, models):
    model = Checkpointed().to(device)

    def step(x):
        result = model(x) if as_one else Checkpointed.forward(model, x)
        result.sum().backward()

    inputs = torch.randn(512, 64, device=device, requires_grad=True)
    scopes = {one.name: one for one in pianola.predict_scopes(step, [inputs], device=device).scopes}
    assert scopes["forward and backward"].graphs == 2 * models
    assert scopes["each layer"].obstacle == ("" if as_one else "no user scope names a layer")


def test_a_function_without_modules_has_no_layers(device):
    forecast = pianola.predict_scopes(lambda x: (x @ x).relu(), [torch.ones(256, 256, device=device)], device=device)
    obstacles = {one.name: one.obstacle for one in forecast.scopes if one.obstacle}
    assert obstacles == {
        "each layer": "no user scope names a layer",
        "iteration without optimizer": "no user scope names an optimizer's step",
    }


def test_lanes_have_a_bound(device):
    lanes = forecast_of_training(device, lanes=2).lanes
    assert lanes.lanes == 2 and lanes.at_most_bytes <= 1 << 30
    assert (lanes.workspace_bytes > 0) is (device.type == "cuda")
    assert lanes.at_most_bytes == min(lanes.workspace_bytes + lanes.reuse_bytes, 1 << 30)


def test_a_forecast_is_text_and_json(device):
    forecast = forecast_of_training(device)
    assert str(forecast) == forecast.to_text() and "lanes add at most" in str(forecast)
    told = json.loads(forecast.to_json())
    assert [one["scope"] for one in told["scopes"]] == SCOPES
    assert told["scopes"][-1]["pool_bytes"] == forecast.scopes[-1].pool_bytes


def test_hooks_are_gone_when_a_step_throws(device):
    model = Net().to(device)

    def step(x):
        model(x)
        raise ValueError("enough")

    before = dict(nn.modules.module._global_forward_pre_hooks)
    with pytest.raises(ValueError, match="enough"):
        pianola.predict_scopes(step, [torch.ones(4, 64, device=device)], device=device)
    assert dict(nn.modules.module._global_forward_pre_hooks) == before


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: pianola.predict_scopes(3), "predict_scopes\\(\\) was given a int, which cannot be called"),
        (lambda: pianola.predict_scopes(lambda: None, warmup=-1), "warmup must be 0 or more, got -1"),
        (lambda: pianola.predict_scopes(lambda: None, lanes=1), "lanes must be 2 or more, got 1"),
    ],
)
def test_what_makes_no_sense_is_refused(call, message):
    with pytest.raises(pianola.UsageError, match=message):
        call()
