"""Steps without hazards: nothing is reported."""

import copy
import dataclasses
import functools

import pytest
import torch

import pianola
from marked_steps import check, findings_of, inputs
from twins import MLP, ConvNet, batches


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    scale: float = 2.0


def training(device, optimizer, model=None, autocast=False, clip=False):
    model = (model or MLP(dropout=0.1)).to(device)
    optimizer = optimizer(model.parameters())

    def step(x):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=autocast, cache_enabled=False):
            loss = model(x).square().mean()
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return step, optimizer


def optimizers(device):
    cuda = device.type == "cuda"
    return {
        "sgd": functools.partial(torch.optim.SGD, lr=0.1),
        "momentum": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01),
        "adam": functools.partial(torch.optim.Adam, lr=0.1, fused=True, capturable=cuda),
        "adamw": functools.partial(torch.optim.AdamW, lr=0.1, fused=True, capturable=cuda),
    }


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "adamw"])
@pytest.mark.parametrize("variant", ["plain", "autocast", "clip"])
def test_training_loops(device, name, variant):
    step, optimizer = training(device, optimizers(device)[name], autocast=variant == "autocast", clip=variant == "clip")
    before = copy.deepcopy(optimizer.state_dict()), [one.detach().clone() for one in optimizer.param_groups[0]["params"]]
    report = pianola.audit(step, batches=inputs(device))
    assert not findings_of(report), f"{report}"
    assert optimizer.state_dict() == before[0]  # without state, as it was
    assert all(torch.equal(one, other) for one, other in zip(before[1], optimizer.param_groups[0]["params"]))


def test_a_scheduler_with_a_learning_rate_on_the_device(device):
    rate = torch.tensor(0.1, device=device)
    kind = functools.partial(torch.optim.Adam, lr=rate, fused=True, capturable=device.type == "cuda")
    step, optimizer = training(device, kind)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch)
    report = pianola.audit(step, batches=inputs(device), between=scheduler.step)
    assert not findings_of(report), f"{report}"


def test_dicts_and_dataclasses_as_batches(device):
    model = MLP().to(device)

    def of_keywords(x, mask=None):
        return model(x) * mask

    def of_a_batch(batch):
        return model(batch.x) * batch.scale

    masks = [{"x": x, "mask": (x > 0).float()} for (x,) in inputs(device)]
    assert not findings_of(pianola.audit(of_keywords, batches=masks))
    assert not findings_of(pianola.audit(of_a_batch, batches=[Batch(x) for (x,) in inputs(device)]))
    assert not findings_of(pianola.audit(of_keywords, batches=({"x": x, "mask": x} for (x,) in inputs(device, 2))))
    assert not findings_of(pianola.audit(model, batches=[x for (x,) in inputs(device)]))


def test_inputs_of_other_shapes(device):
    def step(x):
        return x * 2  # PG502

    check(test_inputs_of_other_shapes, step, batches=[torch.randn(n, 16, device=device) for n in (2, 4, 8, 16)])


def test_eager_state_is_put_back(device):
    model = ConvNet().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before = copy.deepcopy(model.state_dict())

    def step(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        return torch.rand(3, device=device)

    state = torch.get_rng_state()
    pianola.audit(step, batches=[(x,) for x in batches(2, (2, 3, 8, 8), device)])
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state()) and not optimizer.state
    assert all(parameter.grad is None for parameter in model.parameters())
