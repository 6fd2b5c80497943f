"""What changes between runs, and would be frozen."""

import types

import torch

import pianola
from marked_steps import State, check, inputs
from twins import MLP


def test_a_number_that_only_the_host_reads(device):
    config = State()

    def step(x):
        if config.steps > 100:  # PG304
            return x * 3
        return x * 2

    def between():
        config.steps += 1

    check(test_a_number_that_only_the_host_reads, step, batches=inputs(device), between=between)


def test_a_number_that_an_operation_takes(device):
    config = State()

    def step(x):
        return x * config.scale  # PG301

    def between(runs):
        config.scale = 1.0 + runs

    check(test_a_number_that_an_operation_takes, step, batches=inputs(device), between=between)


def test_a_number_among_the_arguments(device):
    def step(x, scale, name):
        return x * scale  # PG301

    entries = [(x, 1.0 + i, "same") for i, (x,) in enumerate(inputs(device))]
    check(test_a_number_among_the_arguments, step, batches=entries)


def test_a_counter_of_the_training_loop_that_the_step_does_not_read(device):
    loop = types.SimpleNamespace(epoch=0)

    def step(x):
        return x * 2

    def between():
        loop.epoch += 1

    check(test_a_counter_of_the_training_loop_that_the_step_does_not_read, step, batches=inputs(device), between=between)


def test_a_tensor_that_the_training_loop_replaces(device):
    state = {"weight": torch.ones(16, device=device)}

    def step(x):
        return x * state["weight"]  # PG401

    def between():
        state["weight"] = state["weight"] + 1

    report = check(test_a_tensor_that_the_training_loop_replaces, step, batches=inputs(device), between=between)
    assert "state['weight']" in report.findings[0].what


def test_the_learning_rate_of_a_scheduler(device):
    model = MLP().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    def step(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()  # PG1001

    check(test_the_learning_rate_of_a_scheduler, step, batches=inputs(device), between=scheduler.step)


def test_a_layer_that_is_unfrozen(device):
    model = torch.nn.Sequential(torch.nn.Conv1d(4, 4, 1), torch.nn.ReLU(), torch.nn.Conv1d(4, 4, 1)).to(device)
    model[2].requires_grad_(False)

    def step(x):
        model.zero_grad()
        loss = model(x.view(4, 4, 4)).square().mean()  # PG501
        loss.backward()
        return loss.detach()

    def between(runs):
        model[2].requires_grad_(runs == 2)

    report = check(test_a_layer_that_is_unfrozen, step, batches=inputs(device), between=between, trial=False)
    assert report.findings[0].what == "2 parameters ('model.2.weight', 'model.2.bias') were unfrozen between iterations"


def test_layers_in_turn_are_not_replaced(device):
    for size in (16, 8):
        layers = torch.nn.ModuleList([torch.nn.Linear(16, 16), torch.nn.Linear(16, size)]).to(device)
        for trains in (True, False):
            layers.requires_grad_(trains)
            turn = {"k": 0}

            def step(x):
                return layers[turn["k"]](x).detach()  # PG501

            def between(runs):
                turn["k"] = runs % 2

            report = check(test_layers_in_turn_are_not_replaced, step, batches=inputs(device), between=between, trial=False)
            assert report.findings[0].what == "another iteration uses 'layers.0.weight' instead of 'layers.1.weight'"


def test_the_optimizers_state_of_layers_in_turn_is_not_given_another_tensor(device):
    """It is made when its layer first comes by."""
    layers = torch.nn.ModuleList([torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)]).to(device)
    optimizer = torch.optim.Adam(layers.parameters(), capturable=device.type == "cuda")
    turn = {"k": 0}

    def step(x):
        optimizer.zero_grad()
        layers[turn["k"]](x).square().mean().backward()
        optimizer.step()

    def between(runs):
        turn["k"] = runs % 2

    report = pianola.audit(step, batches=inputs(device), between=between, trial=False)
    assert {one.rule for one in report.findings} <= {"PG501", "PG1001"}, f"{report}"
    assert "another iteration uses 'layers.1.weight' instead of 'layers.0.weight'" in {one.what for one in report.findings}


def test_a_module_of_layers_in_turn(device):
    """Whose gradients nobody drops: that one is made and another one added to follows from the layer."""

    class InTurn(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList([torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)])
            self.turn = 0

        def forward(self, x):
            return self.layers[self.turn](x)

    module = InTurn().to(device)

    def between(runs):
        module.turn = runs % 2

    report = pianola.audit(module, batches=inputs(device), between=between, trial=False)
    (finding,) = [one for one in report.findings if one.rule != "PG905"]  # in the run that is looked at one layer comes by
    assert finding.rule == "PG501" and finding.what.startswith("another iteration uses 'model.layers."), f"{report}"
