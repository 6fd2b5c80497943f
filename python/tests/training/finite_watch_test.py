"""pianola.FiniteWatch: NaN and infinity stop training a step later, with the step and the tensor."""

import pianola
import pytest
import torch
from twins import MLP, batches


class Training:
    def __init__(self, device, gated=False):
        self.model = MLP(width=8, layers=2).to(device)
        self.optimizer = pianola.optim.SGD(self.model.parameters(), lr=0.1)
        self.watch = pianola.FiniteWatch(device)
        self.x = torch.zeros(4, 8, device=device)
        self.gated = gated

    def step(self):
        self.optimizer.zero_grad()
        loss = self.model(self.x).square().mean()
        loss.backward()
        self.watch.check("loss", loss)
        self.watch.check_gradients(self.model)
        if self.gated:
            self.optimizer.step(found_inf=self.watch.found_inf())
        else:
            self.optimizer.step()
        self.watch.end_step()

    def parameters(self):
        return [parameter.detach().clone() for parameter in self.model.parameters()]


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
def test_nan_in_the_7th_step_stops_the_8th(device, captured):
    training = Training(device, gated=True)
    step = training.step
    if captured:
        graph = pianola.Graph(device)
        graph.capture(step)
        step = graph.replay
    good = None
    for number, batch in enumerate(batches(8, (4, 8), device), start=1):
        if number == 7:
            batch[2, 3] = float("nan")
            good = training.parameters()
        training.x.copy_(batch)
        step()
        synchronize(device)
        if number < 8:
            training.watch.poll()
    with pytest.raises(pianola.NonFiniteError, match="'loss' is NaN in step 7") as raised:
        training.watch.poll()
    assert "'gradient of layers.0.weight'" in raised.value.where
    assert "reset()" in raised.value.fix
    for now, before in zip(training.model.parameters(), good):
        assert torch.equal(now, before), "the bad step changed nothing"
    found = training.watch.find()
    assert (found.step, found.tensor, found.is_nan, found.step_is_exact) == (7, "loss", True, True)
    training.watch.reset(7)
    training.watch.wait()


def test_checks_dictionaries_and_names_the_first(device):
    watch = pianola.FiniteWatch(device)
    losses = {name: torch.tensor(value, device=device) for name, value in
              [("main", 1.0), ("auxiliary", float("-inf")), ("regular", float("nan"))]}
    watch.check(losses)
    watch.check("logits", torch.full((3, 2), float("nan"), dtype=torch.bfloat16, device=device))
    watch.end_step()
    found = watch.find()
    assert found.tensor == "auxiliary" and not found.is_nan
    assert found.tensors == ["auxiliary", "regular", "logits"]


def test_leaves_gradients_alone_where_a_scaler_looks_after_them(device):
    watch = pianola.FiniteWatch(device, gradients=False)
    model = MLP(width=4, layers=1).to(device)
    model(torch.full((2, 4), float("inf"), device=device)).sum().backward()
    watch.check_gradients(model.named_parameters())
    watch.end_step()
    watch.wait()
    assert watch.find() is None


def test_refuses_what_it_cannot_check(device):
    watch = pianola.FiniteWatch(device)
    with pytest.raises(pianola.UsageError, match="'steps' is Long: only floating-point"):
        watch.check("steps", torch.ones((), dtype=torch.int64, device=device))
    with pytest.raises(pianola.UsageError, match="'loss' to check must be a tensor, got float"):
        watch.check("loss", 1.0)
    with pytest.raises(pianola.UsageError, match="max_tensors must be 1 or more"):
        pianola.FiniteWatch(device, max_tensors=0)
    assert issubclass(pianola.NonFiniteError, pianola.Error)
