"""What the step leaves behind on the host: containers, attributes, globals, files."""

import collections
import copy
import itertools
import pickle
import types

import pytest
import torch

import pianola
from marked_steps import State, check, findings_of, inputs
from twins import MLP

numpy = pytest.importorskip("numpy")


def test_containers(device):
    history, last, by_name, seen = [], collections.deque(maxlen=1), {}, set()
    numbers = itertools.count()

    def step(x):
        y = x * 2
        history.append(y.sum())  # PG801
        last.append(y)
        by_name[f"step {next(numbers)}"] = 1  # PG801 PG803
        seen.add(len(history))  # PG801
        return y

    check(test_containers, step, batches=inputs(device))


def test_a_deque_that_is_full(device):
    recent = collections.deque([torch.zeros(()), torch.zeros(())], maxlen=2)

    def step(x):
        y = x * 2
        recent.append(y.sum().detach())  # PG801
        return y

    check(test_a_deque_that_is_full, step, batches=inputs(device))


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(16, 16)
        self.calls = 0
        self.cache = None
        self.last = None

    def forward(self, x):
        self.calls += 1  # PG803
        y = self.inner(x)
        self.last = y
        mean = y.detach().mean(0)
        self.cache = mean if self.cache is None else self.cache * 0.9 + mean  # PG802
        return y + self.cache


def test_attributes_of_a_module(device):
    model = Counting().to(device)

    def step(x):
        return model(x)

    report = check(Counting, step, batches=inputs(device))
    assert {one.module for one in report.findings} == {"model", ""}
    assert any("'model.cache'" in one.what for one in report.findings)
    assert any("'model.calls'" in one.what for one in report.findings)


total = 0
running = None


def test_globals_and_closures(device):
    count = 0
    kept = torch.zeros(16, device=device)

    def step(x):
        nonlocal count, kept
        global total, running
        count += 1  # PG803
        total = total + 1  # PG803
        running = x.sum()
        y = x + kept  # PG802
        kept = y.mean(0)  # PG802
        return y

    check(test_globals_and_closures, step, batches=inputs(device))


def test_objects_of_the_user_s(device):
    state, box = State(), types.SimpleNamespace(n=0, log=[])
    array = numpy.zeros(3)

    def step(x):
        state.steps += 1  # PG803
        state.names["last"] = state.steps  # PG803
        box.n, array[0] = box.n + 1, array[0] + 1  # PG803
        return x * 2

    check(test_objects_of_the_user_s, step, batches=inputs(device))


class Trainer:
    def __init__(self, device):
        self.model = MLP().to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, fused=True)
        self.losses = []
        self.best = None

    def step(self, x):
        self.optimizer.zero_grad()
        loss = self.model(x).square().mean()  # PG901
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.detach())  # PG801
        return loss.detach()


def test_a_bound_method(device):
    trainer = Trainer(device)
    report = check(Trainer, trainer.step, batches=inputs(device))
    assert "'self.losses'" in [one for one in report.findings if one.rule == "PG801"][0].what


class Counted:
    instances = 0
    history = []


def grows(x, cache={}):  # noqa: B006
    cache[len(cache)] = 1  # PG801
    grows.calls = getattr(grows, "calls", 0) + 1  # PG803
    Counted.instances += 1  # PG803
    Counted.history += [1]  # PG801
    return x * 2


def test_places_of_classes_and_functions(device):
    check(grows, grows, batches=inputs(device))


def test_entries_that_come_from_iterators(device):
    loader = iter(torch.utils.data.DataLoader(torch.zeros(64, 16), batch_size=4))
    entries = (float(i) for i in range(100))
    numbers = iter(range(100))

    def step(x):
        next(loader)  # PG803
        next(entries)  # PG803
        next(numbers)  # PG803
        return x * 2

    own = device.type == "cpu"  # the loader works there
    check(test_entries_that_come_from_iterators, step, besides=("PG301",), exactly=own, batches=inputs(device))


def test_an_optimizer_s_settings_that_the_step_changes(device):
    model = MLP().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)

    def step(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()  # PG1001
        optimizer.param_groups[0]["lr"] *= 0.9  # PG803

    check(test_an_optimizer_s_settings_that_the_step_changes, step, batches=inputs(device))


def test_a_parameter_that_the_step_replaces(device):
    layer = torch.nn.Linear(16, 16).to(device)

    def step(x):
        y = layer(x)  # PG402
        layer.weight = torch.nn.Parameter(layer.weight.detach() * 0.9)  # PG802
        return y

    check(test_a_parameter_that_the_step_replaces, step, batches=inputs(device))


def test_files_with_tensors(device, tmp_path):
    def step(x):
        y = x * 2
        torch.save(y, tmp_path / "y.pt")  # PG103 PG804
        torch.load(tmp_path / "y.pt")  # PG804
        return y

    check(test_files_with_tensors, step, exactly=device.type == "cpu", batches=inputs(device), trial=False)


def test_pickled_tensors(device):
    def step(x):
        y = x * 2
        pickle.dumps(y)  # PG103
        pickle.dumps({"y": y.untyped_storage()})  # PG103
        copy.copy(y)
        return y

    report = check(test_pickled_tensors, step, exactly=device.type == "cpu", batches=inputs(device), trial=False)
    if device.type == "cpu":
        assert {finding.what for finding in report.findings} == {"pickle copies a tensor's values"}


def test_numpy_s_seed(device):
    def step(x):
        numpy.random.seed(0)  # PG602
        return x * 2

    check(test_numpy_s_seed, step, batches=inputs(device))


def test_hooks(device):
    activations = []
    model = MLP().to(device)

    def keeps(module, args, output):  # PG1004
        activations.append(output.detach())  # PG801

    def clamps(module, args, output):
        return output.clamp(-1, 1)

    model.layers[0].register_forward_hook(clamps)
    assert not findings_of(pianola.audit(lambda x: model(x), batches=inputs(device)))
    model.layers[0].register_forward_hook(keeps)
    check(test_hooks, lambda x: model(x), batches=inputs(device))


def test_a_step_made_of_a_string(device):
    variables = {"n": 0}
    exec("def step(x):\n    global n\n    n += 1\n    print(n)\n    return x * 2\n", variables)
    report = pianola.audit(variables["step"], batches=inputs(device))
    assert [(one.rule, one.file, one.line) for one in findings_of(report)] == [("PG803", "<string>", 3), ("PG804", "<string>", 4)]


def test_objects_that_do_not_want_to_be_looked_at(device):
    class Angry:
        def __init__(self):
            self.names = {self: 1}

        def __repr__(self):
            raise RuntimeError("leave me alone")

        def __eq__(self, other):
            raise RuntimeError("leave me alone")

        def __hash__(self):
            return 1

    angry = Angry()
    report = pianola.audit(lambda x: (x * 2, angry)[0], batches=inputs(device))
    assert not findings_of(report)


def test_a_graphed_function_is_audited_as_the_function(device):
    @pianola.graphed
    def step(x):
        print("a step")  # PG804
        return x * 2

    check(test_a_graphed_function_is_audited_as_the_function, step, batches=inputs(device))
    assert not step.info().signatures


def test_what_is_written_and_never_read_is_a_result(device):
    results = {}
    holder = types.SimpleNamespace(y=None)

    def step(x):
        y = x * 2
        results["y"] = y
        holder.y = y

    check(test_what_is_written_and_never_read_is_a_result, step, batches=inputs(device))
    assert results["y"] is holder.y


def test_a_cache_that_is_filled_once(device):
    cache = {}

    def step(x):
        if "mask" not in cache:
            cache["mask"] = torch.ones(16, device=device)
        return x * cache["mask"]

    check(test_a_cache_that_is_filled_once, step, batches=inputs(device))
