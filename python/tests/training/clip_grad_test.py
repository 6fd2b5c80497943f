"""pianola.clip_grad_norm_ and clip_grad_value_ against torch's, bit for bit."""

import copy
import re

import pianola
import pytest
import torch
from twins import MLP, assert_same, batches

NORMS = [0.0, 0.5, 1.0, 2, 3.0, "inf", float("inf")]


def with_gradients(device, scale=1.0, dtypes=(torch.float32,)):
    """Parameters of several shapes and dtypes, one of them without a gradient."""
    parameters = []
    for number, shape in enumerate([(4, 3), (7,), (2, 3, 5), (1,), (300, 40), (3,)]):
        (value, gradient), dtype = batches(2, shape, device, seed=number), dtypes[number % len(dtypes)]
        parameter = torch.nn.Parameter(value.to(dtype))
        parameter.grad = (gradient * scale).to(dtype)
        parameters.append(parameter)
    parameters[-1].grad = None
    return parameters


def twins(parameters):
    copies = copy.deepcopy(parameters)
    for one, other in zip(parameters, copies):
        other.grad = None if one.grad is None else one.grad.clone()
    return copies


def assert_same_gradients(ours, torchs):
    for number, (one, other) in enumerate(zip(ours, torchs)):
        assert_same(f"gradient {number}", one.grad, other.grad)


@pytest.mark.parametrize("norm_type", NORMS)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e10])
@pytest.mark.parametrize("dtypes", [(torch.float32,), (torch.float32, torch.bfloat16), (torch.float64, torch.float32)])
def test_norm_and_gradients_equal_torchs(device, norm_type, scale, dtypes):
    ours = with_gradients(device, scale, dtypes)
    torchs = twins(ours)
    norm = pianola.clip_grad_norm_(ours, 0.7, norm_type)
    expected = torch.nn.utils.clip_grad_norm_(torchs, 0.7, norm_type, foreach=True)
    assert norm.dtype == expected.dtype and norm.shape == expected.shape
    assert torch.equal(norm, expected)
    assert_same_gradients(ours, torchs)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("norm_type", [2.0, "inf"])
def test_what_is_not_finite_spreads_as_in_torch(device, value, norm_type):
    ours = with_gradients(device)
    ours[1].grad[3] = value
    torchs = twins(ours)
    norm = pianola.clip_grad_norm_(ours, 1.0, norm_type)
    expected = torch.nn.utils.clip_grad_norm_(torchs, 1.0, norm_type, foreach=True)
    assert torch.equal(norm.isnan(), expected.isnan()) and torch.equal(norm.isinf(), expected.isinf())
    for one, other in zip(ours[:-1], torchs[:-1]):
        assert torch.equal(one.grad.nan_to_num(nan=77.0), other.grad.nan_to_num(nan=77.0))


def test_values_equal_torchs(device):
    ours = with_gradients(device, dtypes=(torch.float32, torch.bfloat16))
    torchs = twins(ours)
    pianola.clip_grad_value_(ours, 0.3)
    torch.nn.utils.clip_grad_value_(torchs, 0.3, foreach=True)
    assert_same_gradients(ours, torchs)


def test_takes_modules_pairs_optimizers_generators_and_one_tensor(device):
    models = [MLP(width=4, layers=2).to(device)]
    models += [copy.deepcopy(models[0]) for _ in range(4)]
    (x,) = batches(1, (3, 4), device)
    for model in models:
        model(x).sum().backward()
    norms = [
        torch.nn.utils.clip_grad_norm_(models[0].parameters(), 0.1),
        pianola.clip_grad_norm_(models[1], 0.1),
        pianola.clip_grad_norm_(models[2].named_parameters(), 0.1),
        pianola.clip_grad_norm_(models[3].parameters(), 0.1),
        pianola.clip_grad_norm_(pianola.optim.SGD(models[4].parameters(), lr=0.1), 0.1),
    ]
    for norm, model in zip(norms, models):
        assert torch.equal(norm, norms[0])
        assert_same_gradients(list(model.parameters()), list(models[0].parameters()))
    (one,), (other,) = with_gradients(device)[:1], with_gradients(device)[:1]
    assert torch.equal(pianola.clip_grad_norm_(one, 0.1), torch.nn.utils.clip_grad_norm_(other, 0.1))
    gradients = [g.clone() for g in (one.grad, other.grad)]
    pianola.clip_gradients_norm_(gradients[:1], 0.01)
    torch.nn.utils.clip_grad_norm_(other, 0.01)
    assert torch.equal(gradients[0], other.grad)
    assert pianola.clip_grad_norm_([], 1.0).item() == 0


def test_a_replay_equals_torch(device):
    ours = with_gradients(device)
    graph = pianola.Graph(device)
    norm = torch.zeros((), device=device)
    graph.capture(lambda: norm.copy_(pianola.clip_grad_norm_(ours, 0.5)))
    for seed in range(3):
        for parameter in ours[:-1]:
            parameter.grad.copy_(batches(1, parameter.shape, device, seed=seed + 50)[0] * 10**seed * 0.01)
        torchs = twins(ours)
        graph.replay()
        assert torch.equal(norm, torch.nn.utils.clip_grad_norm_(torchs, 0.5))
        assert_same_gradients(ours, torchs)


def test_a_watch_stops_for_a_norm(device):
    watch = pianola.FiniteWatch(device)
    model = MLP(width=4, layers=1).to(device)
    model(torch.full((2, 4), float("nan"), device=device)).sum().backward()
    pianola.clip_grad_norm_(model, 1.0, error_if_nonfinite=watch)
    watch.end_step()
    with pytest.raises(pianola.NonFiniteError, match=re.escape("'2-norm of the gradient of layers.0.weight' is NaN")):
        watch.wait()


def test_what_cannot_be_clipped_is_refused(device):
    parameters = with_gradients(device)
    with pytest.raises(pianola.UsageError, match="must be False or a FiniteWatch, got True") as raised:
        pianola.clip_grad_norm_(parameters, 1.0, error_if_nonfinite=True)
    assert "poll()" in raised.value.fix
    with pytest.raises(pianola.UsageError, match="max_norm must be 0 or more, got -1"):
        pianola.clip_grad_norm_(parameters, -1)
    with pytest.raises(pianola.UsageError, match="none of the 2 tensors"):
        pianola.clip_grad_norm_([torch.ones(2), torch.ones(2)], 1)
