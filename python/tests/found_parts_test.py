"""`graphed`: modules that read values which change from call to call, found in a step and left out of its graph."""

import copy

import pianola
import pytest
import torch
from found import (  # noqa: F401
    STEPS,
    Experts,
    assert_alike,
    assert_freed,
    batch,
    descending,
    deterministic,
    expect_eager,
    graphs_are_faster,
)
from torch import nn
from twins import assert_same

class Layer(nn.Module):
    def __init__(self, experts):
        super().__init__()
        self.norm, self.dense, self.experts = nn.LayerNorm(8), nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.1)), experts

    def forward(self, x):
        return self.experts(x + self.dense(self.norm(x)))


def layers(**options):
    return nn.Sequential(*[Layer(Experts(**options)) for _ in range(2)])


def test_experts_stay_eager_and_the_rest_of_the_step_is_a_graph(device):
    told = []
    step, _ = assert_alike(layers, device, [batch(i) for i in range(STEPS)], told)
    (signature,) = step.info().signatures
    assert signature.state == "captured" and signature.replays >= 25 and signature.misses == 0, (signature.reason, told)
    (part,) = step.info().parts
    assert part.startswith("2 x Experts: aten::nonzero (forward at found.py:") and "us a call replayed" in part
    assert "Parts that stay eager" in str(step.info()) and not told


def test_a_call_in_which_an_expert_has_no_tokens_runs_eagerly(device):
    """Its parameters have no gradient then, and AdamW leaves them alone: the graph of the update is of another call."""

    class One(Experts):
        def __init__(self):
            super().__init__(count=2, skips=True)
            with torch.no_grad():
                self.router.weight.copy_(torch.stack([torch.ones(8), -torch.ones(8)]))
                self.router.weight.requires_grad_(False)

    def make():
        return nn.Sequential(One(), nn.Linear(8, 8), nn.Dropout(0.1))

    sides = {34: 50.0, 42: 50.0, 43: 50.0}
    step, _ = assert_alike(make, device, [batch(i, side=sides.get(i, 0.0)) for i in range(STEPS)])
    (signature,) = step.info().signatures
    assert signature.misses == 3 and signature.replays >= 20, signature.reason


def test_calls_that_read_the_same_by_chance_are_followed_by_more_looks(device):
    def make():
        model = nn.Sequential(Experts(count=2), nn.Linear(8, 8))
        model[0].router.weight.requires_grad_(False)
        return model

    alike = range(4, 7)  # of the first calls that are looked at
    step, _ = assert_alike(make, device, [batch(4 if i in alike else i) for i in range(STEPS)])
    assert step.info().signatures[0].replays >= 20 and len(step.info().parts) == 1, step.info()


def test_a_copy_of_the_model_is_a_plain_one(device):
    _, model = assert_alike(layers, device, [batch(i) for i in range(STEPS)])
    twin = copy.deepcopy(model)
    for parameter in twin.parameters():
        parameter.data.zero_()
    x = batch(0).to(device)
    model.eval()
    twin.eval()
    assert_same("the copy", twin(x), x)
    assert not torch.equal(model(x), x)


def test_what_draws_random_numbers_is_no_part(device):
    expect_eager(lambda: layers(dropout=0.1), device, "reads another value in each call, and Experts draws random numbers")


def test_what_sets_an_attribute_is_no_part(device):
    class Counting(Experts):
        def forward(self, x):
            self.last = x + self.experts[0](x[x[:, 0] > 0]).mean()
            return self.last

    expect_eager(lambda: nn.Sequential(nn.Linear(8, 8), Counting()), device, "Counting sets an attribute")


def test_what_writes_a_buffer_is_no_part(device):
    class Normed(Experts):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(8)

        def forward(self, x):
            return self.norm(x) + self.experts[0](x[x[:, 0] > 0]).mean()

    expect_eager(lambda: nn.Sequential(nn.Linear(8, 8), Normed()), device, "Normed writes a tensor in place")


def test_what_returns_other_shapes_makes_the_module_around_it_the_part(device):
    class Rows(nn.Module):
        def forward(self, x):
            return x[x[:, 0] > 0]

    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows, self.linear = Rows(), nn.Linear(8, 8)

        def forward(self, x):
            return self.linear(self.rows(x)).mean() + x

    step, _ = assert_alike(lambda: nn.Sequential(nn.Linear(8, 8), Around()), device, [batch(i) for i in range(STEPS)])
    assert step.info().signatures[0].replays >= 25 and step.info().parts[0].startswith("Around: aten::")


def test_a_read_in_the_step_itself_is_no_part(device):
    step_of = descending(lambda model, x: model(x[x[:, 0] > 0]).square().mean())
    expect_eager(lambda: nn.Linear(8, 8), device, "no module or plain function is around aten::index.Tensor (<lambda> at found_parts_test.py:", step_of)


def test_a_part_that_costs_more_than_it_gains_is_given_up(device, monkeypatch):
    times = iter([1.0, 2.0])  # eager, replayed
    monkeypatch.setattr("pianola._timed_calls.Watch.fastest", lambda self: next(times))
    expect_eager(layers, device, "leaving Experts out of the graph was tried: that is slower: 2 us a call replayed, 1 us eager", count=STEPS)


def test_none_is_found_where_only_marked_parts_are_wanted(device):
    told = []
    torch.manual_seed(0)
    model = layers().to(device)
    step = pianola.graphed(lambda x: model(x).sum().detach(), islands="marked", on_fallback=told.append)
    for i in range(20):
        step(batch(i).to(device))
    assert step.info().signatures[0].state == "eager" and not step.info().parts and len(told) == 1


def test_what_a_part_raises_comes_out(device):
    class Careful(Experts):
        def forward(self, x):
            if x.abs().max().item() > 900:
                raise ValueError("too large")
            return super().forward(x)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), Careful()).to(device)
    step = pianola.graphed(lambda x: model(x).square().mean().backward())
    for i in range(30):
        step(batch(i).to(device))
    assert step.info().signatures[0].replays > 0
    with pytest.raises(ValueError, match="too large"):
        step(batch(30).to(device) + 1e6)
    step(batch(31).to(device))


def test_a_parameter_that_autocast_casts_once_for_two_calls_is_in_a_part_around_both(device):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.experts = nn.Linear(8, 8), Experts()

        def forward(self, x):
            with torch.autocast(device.type, dtype=torch.bfloat16):
                return self.experts(self.experts(self.first(x).float()).float())

    step, _ = assert_alike(lambda: nn.Sequential(nn.Linear(8, 8), Twice()), device, [batch(i) for i in range(STEPS)])
    assert step.info().signatures[0].replays >= 25 and step.info().parts[0].startswith("Twice: aten::nonzero")


def test_experts_under_autocast(device):
    class Once(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.experts = nn.Linear(8, 8), Experts()

        def forward(self, x):
            with torch.autocast(device.type, dtype=torch.bfloat16):
                return self.experts(self.first(x).float())

    step, _ = assert_alike(Once, device, [batch(i) for i in range(STEPS)])
    assert step.info().signatures[0].replays >= 25 and len(step.info().parts) == 1


class Kept(Experts):
    """Tells of its balance by an object beside it."""

    def __init__(self, beside):
        super().__init__()
        self.beside = beside

    def forward(self, x):
        self.beside.balance = self.router(x).softmax(-1).mean(0).square().sum()
        return super().forward(x)


def test_what_hands_out_a_tensor_by_an_object_is_no_part(device):
    def make():
        beside = nn.Identity()
        model = nn.Sequential(nn.Linear(8, 8), Kept(beside))
        object.__setattr__(model, "beside", beside)
        return model

    step_of = descending(lambda model, x: model(x).square().mean() + model.beside.balance)
    expect_eager(make, device, "aten::", step_of)


def test_what_is_switched_around_its_call_is_no_part(device):
    def step_of(model, optimizer):
        def step(x):
            optimizer.zero_grad()
            model[1].eval()
            reference = model(x)
            model[1].train()
            loss = (model(x) - reference.detach() * 0.5).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        return step

    expect_eager(lambda: nn.Sequential(nn.Linear(8, 8), Experts()), device, "is otherwise", step_of)


def test_a_dict_that_is_changed_is_no_argument_of_a_part(device):
    class Caching(Experts):
        def forward(self, x, cache):
            cache["seen"] = cache.get("seen", 0) + 1
            return x + self.experts[0](x[x[:, 0] > 0]).mean()

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.experts = nn.Linear(8, 8), Caching()

        def forward(self, x):
            cache = {}
            hidden = self.experts(self.first(x), cache)
            return hidden * cache["seen"]

    step, _ = assert_alike(lambda: nn.Sequential(Model(), nn.Linear(8, 8)), device, [batch(i) for i in range(STEPS)])
    assert step.info().signatures[0].replays >= 25 and step.info().parts[0].startswith("Model: ")


@pytest.mark.parametrize("odd", [{9}, {10}, {12}, {14}, {30, 31}], ids=str)
def test_a_part_that_writes_its_argument_in_some_calls(device, odd):
    class Clamping(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x):
            if x.detach().abs().max() > 200:
                x.clamp_(-1, 1)
            return self.linear(x) + self.linear(x[x[:, 0] > 0]).mean()

    def make():
        return nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), Clamping())

    assert_alike(make, device, [batch(i) * (1e4 if i in odd else 1.0) for i in range(STEPS)])


def test_a_forward_hook_that_keeps_the_result(device):
    def step_of(model, optimizer):
        kept = {}
        model[1].register_forward_hook(lambda module, args, result: kept.update(result=result))

        return descending(lambda model, x: model(x).square().mean() + kept["result"].abs().mean())(model, optimizer)

    expect_eager(lambda: nn.Sequential(nn.Linear(8, 8), Experts()), device, "the function changes kept", step_of)


def test_what_was_looked_at_is_freed(device):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.experts = nn.Linear(8, 8), Experts()

        @pianola.graphed(on_fallback=lambda reason: None)
        def step(self, x):
            loss = self.experts(self.first(x)).square().mean()
            loss.backward()
            return loss

    assert_freed(Net, device)
