"""pianola.audit: each hazard with its rule and its line, and nothing where nothing is wrong.

A line that is a hazard says so in a comment, "# PG801"; findings of this file are compared with these comments.
"""

import collections
import copy
import dataclasses
import datetime
import functools
import gc
import inspect
import itertools
import json
import logging
import os
import random
import re
import subprocess
import sys
import time
import types
import uuid
import weakref

import pytest
import torch

import pianola
from pianola import _C
from pianola.auditing.graphed_modules import _line_with_keyword
from pianola.auditing.marks import has_other_members, mark_of
from pianola.auditing.reach import Walk, roots_of
from twins import MLP, ConvNet, batches

numpy = pytest.importorskip("numpy")


def marked(function):
    """{(rule, line)} of the comments in its source."""
    lines, first = inspect.getsourcelines(function)
    return {(rule, first + i) for i, line in enumerate(lines) for rule in re.findall(r"PG\d+", line.partition("# ")[2])}


def found(report):
    return {(finding.rule, finding.line if finding.file == __file__ else finding.file) for finding in report.findings}


def check(test, step, besides=(), exactly=True, **options):
    """Audits the step; `besides` are rules of findings whose line is not compared. Not exactly: more may be found."""
    report = pianola.audit(step, **options)
    placed = {one for one in found(report) if one[0] not in besides}
    assert placed == marked(test) or (not exactly and placed > marked(test)), f"{report}"
    assert {rule for rule, _ in found(report)} >= set(besides) or not exactly, f"{report}"
    assert all(finding.what and finding.fix for finding in report.findings)
    return report


def inputs(device, count=4):
    return [(x,) for x in batches(count, (4, 16), device)]


# --- Reads of tensors ---


def test_values_that_the_host_takes(device):
    def step(x):
        y = x * 2
        y.detach().cpu()  # PG103
        y.detach().cpu().numpy()  # PG103
        y.tolist()  # PG103
        numpy.asarray(y.detach().cpu())  # PG103
        y.sum().item()  # PG101
        return y

    check(test_values_that_the_host_takes, step, batches=inputs(device))


def test_a_tensor_that_is_printed(device, capsys):
    def step(x):
        y = x * 2
        print("y is", y)  # PG104
        text = f"{y.sum():.2f}"  # PG104
        logging.getLogger("audit_test").error("%s", y + 1)  # PG104
        str(y[0])  # PG104
        return y, text

    report = check(test_a_tensor_that_is_printed, step, batches=inputs(device))
    assert [one.op for one in report.findings] == ["print", "Tensor.__format__", "logging", "Tensor.__repr__"]


def test_a_copy_that_does_nothing_on_the_cpu_is_one_on_the_gpu(device):
    def step(x):
        y = (x * 2).to("cpu")  # PG103
        z = (x + 1).to(device="cpu")  # PG103
        return y.sum() + z.sum() + (x * 3).to(x.device).to(torch.float32).to(x.device).sum()

    own = device.type == "cpu"  # what is copied to the CPU is used there
    check(test_a_copy_that_does_nothing_on_the_cpu_is_one_on_the_gpu, step, exactly=own, batches=inputs(device))


# --- Waiting ---


def test_waiting_for_streams(device):
    stream = pianola.current_stream(device)

    def step(x):
        y = x * 2
        stream.synchronize()  # PG108
        stream.query()  # PG109
        torch.cpu.synchronize()  # PG108
        return y

    if device.type == "cuda":
        stream = torch.cuda.Stream()
    check(test_waiting_for_streams, step, batches=inputs(device))


def test_waiting_for_a_gpu(device):
    if device.type != "cuda":
        pytest.skip("needs a GPU")

    def step(x):
        event = torch.cuda.Event()
        y = x * 2
        event.record()
        torch.cuda.synchronize()  # PG108
        event.synchronize()  # PG108
        event.query()  # PG109
        return y

    check(test_waiting_for_a_gpu, step, batches=inputs(device))


# --- Random numbers ---


def test_generators_that_are_set_and_read_in_the_step(device):
    generator = torch.Generator(device)

    def step(x):
        torch.manual_seed(0)  # PG602
        state = torch.get_rng_state()  # PG603
        torch.set_rng_state(state)  # PG602
        generator.manual_seed(1)  # PG602
        generator.set_state(generator.get_state())  # PG602 PG603
        return x * 2

    check(test_generators_that_are_set_and_read_in_the_step, step, batches=inputs(device), generators=[generator])


def test_random_numbers_of_the_host(device):
    own = random.Random(1)

    def step(x):
        a = random.random()  # PG604
        b = random.choice([1, 2, 3])  # PG604
        c = own.gauss(0, 1)  # PG604
        uuid.uuid4()  # PG604
        os.urandom(4)  # PG604
        return x * 2 if a + b + c > -100 else x

    check(test_random_numbers_of_the_host, step, batches=inputs(device))


def test_random_numbers_of_numpy(device):
    generator = numpy.random.default_rng(1)
    state = numpy.random.RandomState(1)

    def step(x):
        a = numpy.random.rand()  # PG604
        b = generator.normal()  # PG604
        c = state.uniform()  # PG604
        return x * 2 if a + b + c > -100 else x

    check(test_random_numbers_of_numpy, step, batches=inputs(device))


def test_random_numbers_of_the_host_that_reach_the_device(device):
    def step(x):
        scale = random.uniform(1, 2)  # PG604
        return x * scale  # PG301

    check(test_random_numbers_of_the_host_that_reach_the_device, step, batches=inputs(device))


def test_python_s_generator_may_be_used_between_runs(device):
    def step(x):
        return x * 2

    check(test_python_s_generator_may_be_used_between_runs, step, batches=inputs(device), between=lambda: random.random())


def test_checkpoint_saves_the_generators_state(device):
    model = MLP(dropout=0.1).to(device)

    def step(x):
        y = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)  # PG605
        y.sum().backward()
        return y.detach()

    check(test_checkpoint_saves_the_generators_state, step, batches=inputs(device))


def test_checkpoint_without_generators(device):
    model = MLP().to(device)

    def step(x):
        y = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False, preserve_rng_state=False)
        y.sum().backward()
        return y.detach()

    check(test_checkpoint_without_generators, step, batches=inputs(device))


# --- Clock and output ---


def test_the_clock(device):
    def step(x):
        begin = time.perf_counter()  # PG305
        y = x * 2
        time.time(), time.monotonic_ns()  # PG305
        datetime.datetime.now()  # PG305
        return y if begin > 0 else x

    check(test_the_clock, step, batches=inputs(device))


def test_output(device, tmp_path):
    def step(x):
        print("a step")  # PG804
        logging.getLogger("audit_test").warning("a step")  # PG804
        with open(tmp_path / "log", "a") as log:  # PG804
            log.write("a step\n")  # PG804
        return x * 2

    report = check(test_output, step, batches=inputs(device))
    assert report.ok and report.worst == "style" and report.exit_code == 0


def test_logging_below_the_level_is_no_output(device):
    def step(x):
        logging.getLogger("audit_test").debug("a step")
        return x * 2

    check(test_logging_below_the_level_is_no_output, step, batches=inputs(device))


# --- What the step leaves behind on the host ---


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


@dataclasses.dataclass
class State:
    steps: int = 0
    scale: float = 1.0
    names: dict = dataclasses.field(default_factory=dict)


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
    assert not pianola.audit(lambda x: model(x), batches=inputs(device)).findings
    model.layers[0].register_forward_hook(keeps)
    check(test_hooks, lambda x: model(x), batches=inputs(device))


def test_a_step_made_of_a_string(device):
    variables = {"n": 0}
    exec("def step(x):\n    global n\n    n += 1\n    print(n)\n    return x * 2\n", variables)
    report = pianola.audit(variables["step"], batches=inputs(device))
    assert [(one.rule, one.file, one.line) for one in report.findings] == [("PG803", "<string>", 3), ("PG804", "<string>", 4)]


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
    assert not report.findings


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


# --- What changes between runs ---


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


# --- Steps that fail ---


def test_a_step_that_raises(device):
    calls = []

    def fails(x):
        raise ValueError("the third is too much")  # PG1202

    def step(x):
        calls.append(1)  # PG801
        return fails(x) if len(calls) == 3 else x * 2

    report = check(test_a_step_that_raises, step, batches=inputs(device))
    assert "ValueError: the third is too much" in [one for one in report.findings if one.rule == "PG1202"][0].evidence
    assert not report.ok


def test_a_step_that_raises_at_once(device):
    def step(x):
        return x @ x  # PG1202

    report = check(test_a_step_that_raises_at_once, step, batches=inputs(device))
    assert [one.rule for one in report.findings] == ["PG1202"]


def test_a_step_without_memory(device):
    def step(x):
        raise torch.OutOfMemoryError("no memory")  # PG908

    check(test_a_step_without_memory, step, batches=inputs(device))


def test_what_between_raises_comes_out(device):
    def between():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        pianola.audit(lambda x: x * 2, batches=inputs(device), between=between)
    assert sys.getprofile() is None


# --- Modules that are going to be graphed for themselves ---


class Hooked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used = torch.nn.Linear(16, 16)
        self.unused = torch.nn.Linear(16, 16)  # PG905
        self.register_buffer("scale", torch.ones(16, requires_grad=True))  # PG904
        self.spare = torch.nn.Parameter(torch.zeros(16))  # PG905

    def forward(self, x):
        return self.used(x) * self.scale


def prints_nothing(module, args, output):  # PG1004
    return None


def test_a_module_that_cannot_be_graphed(device):
    module = Hooked().to(device)
    module.scale = module.scale.detach().requires_grad_()
    module.register_forward_hook(prints_nothing)
    for warmup in (1, 0):
        report = pianola.audit(module, batches=inputs(device), warmup=warmup)
        assert found(report) == marked(Hooked) | marked(prints_nothing), f"{report}"
    assert [one.what for one in report.findings if one.rule == "PG905"] == [
        "the parameter 'model.spare' gets no gradient",
        "the parameter 'model.unused.weight' gets no gradient",
    ]
    assert not module._backward_hooks and not module.spare._post_accumulate_grad_hooks
    assert all(parameter.grad is None for parameter in module.parameters())


def test_a_module_that_can_be_graphed(device):
    for module in (ConvNet().to(device), ConvNet().to(device).eval()):
        report = pianola.audit(module, batches=[(x,) for x in batches(2, (2, 3, 8, 8), device)])
        assert not report.findings, f"{report}"


def test_a_second_forward_before_backward(device):
    layer = torch.nn.Linear(16, 16).to(device)

    def step(x):
        one = layer(x)
        other = layer(x * 2)  # PG907
        (one + other).sum().backward()

    check(test_a_second_forward_before_backward, step, batches=inputs(device), callables=[layer])


def test_one_forward_after_the_other(device):
    layer = torch.nn.Linear(16, 16).to(device)

    def step(x):
        for part in x.chunk(2):
            layer(part).sum().backward()
        with torch.no_grad():
            layer(x)
            return layer(x)

    check(test_one_forward_after_the_other, step, batches=inputs(device), callables=[layer])


def test_gradients_of_gradients(device):
    layer = torch.nn.Linear(16, 16).to(device)

    def step(x):
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(layer(x).sum(), x, create_graph=True)  # PG1007
        gradient.square().sum().backward()

    report = pianola.audit(step, batches=inputs(device), callables=[layer], trial=False)
    assert marked(test_gradients_of_gradients) <= found(report), f"{report}"
    assert "PG1007" not in {rule for rule, _ in found(pianola.audit(step, batches=inputs(device), trial=False))}


def test_callables_must_be_modules():
    with pytest.raises(pianola.UsageError, match="callables holds a function"):
        pianola.audit(lambda: None, callables=[lambda x: x])


# --- Frameworks ---


@pytest.fixture
def process_group(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_distributed_training(process_group, monkeypatch):
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))

    def step(x):
        model(x).sum().backward()  # PG1101 PG1104

    report = pianola.audit(step, batches=inputs("cpu"), trial=False)
    rules = {("PG1101", "breaks capture"), ("PG1104", "breaks capture")}
    assert {(one.rule, one.severity) for one in report.findings if one.rule.startswith("PG11")} == rules, f"{report}"
    assert {one for one in found(report) if one[0].startswith("PG11")} == marked(test_distributed_training)
    assert any(one.evidence == "TORCH_NCCL_ASYNC_ERROR_HANDLING is '1'" for one in report.findings)


def test_distributed_training_that_can_be_captured(process_group, monkeypatch):
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))

    def step(x):
        model(x).sum().backward()

    report = pianola.audit(step, batches=inputs("cpu"), trial=False, capture_warmup=11)
    assert not [one for one in report.findings if one.rule.startswith("PG11")], f"{report}"


def test_the_stream_on_which_gradients_are_accumulated():
    leaf = torch.ones(3, requires_grad=True)
    assert _C.gradient_stream(leaf) is None
    node = leaf.expand_as(leaf).grad_fn.next_functions[0][0]
    assert node is not None and _C.gradient_stream(leaf) is None  # the CPU has no streams
    if torch.cuda.is_available():
        leaf = torch.ones(3, device="cuda", requires_grad=True)
        node = leaf.expand_as(leaf).grad_fn.next_functions[0][0]
        assert _C.gradient_stream(leaf) == 0 and node is not None


class Float8(torch.nn.Linear):
    fp8_initialized = False


def test_fp8_outside_autocast(device, monkeypatch):
    layer = Float8(16, 16).to(device)
    layer.fp8_initialized = True
    enabled = False
    fake = types.ModuleType("transformer_engine.pytorch.fp8")
    fake.FP8GlobalStateManager = types.SimpleNamespace(is_fp8_enabled=lambda: enabled)
    monkeypatch.setitem(sys.modules, "transformer_engine.pytorch.fp8", fake)

    def step(x):
        return layer(x)  # PG1009

    check(test_fp8_outside_autocast, step, batches=inputs(device))
    enabled = True
    assert not pianola.audit(step, batches=inputs(device)).findings


def test_a_function_that_compiles_in_the_step(device):
    compiled = torch.compile(lambda y: y * 2 + 1, backend="eager")

    def step(x):
        return compiled(x)  # PG1005

    check(test_a_function_that_compiles_in_the_step, step, batches=inputs(device), between=torch._dynamo.reset, trial=False)


def test_a_function_that_was_compiled_before(device):
    compiled = torch.compile(lambda y: y * 2 + 1, backend="eager")

    def step(x):
        return compiled(x)  # PG1005

    assert not pianola.audit(step, batches=inputs(device)).findings
    torch._dynamo.reset()
    report = pianola.audit(step, batches=inputs(device), trial=False, capture_warmup=0)
    assert found(report) == marked(test_a_function_that_was_compiled_before), f"{report}"


def test_a_module_that_is_compiled_and_trained(device):
    model = MLP().to(device)
    compiled = torch.compile(model, backend="eager")

    def step(x):
        loss = compiled(x).square().mean()
        loss.backward()
        return loss

    assert not pianola.audit(step, batches=inputs(device)).findings


# --- Steps without hazards ---


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
    assert not report.findings, f"{report}"
    assert optimizer.state_dict() == before[0]  # without state, as it was
    assert all(torch.equal(one, other) for one, other in zip(before[1], optimizer.param_groups[0]["params"]))


def test_a_scheduler_with_a_learning_rate_on_the_device(device):
    rate = torch.tensor(0.1, device=device)
    kind = functools.partial(torch.optim.Adam, lr=rate, fused=True, capturable=device.type == "cuda")
    step, optimizer = training(device, kind)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch)
    report = pianola.audit(step, batches=inputs(device), between=scheduler.step)
    assert not report.findings, f"{report}"


def test_dicts_and_dataclasses_as_batches(device):
    model = MLP().to(device)

    def of_keywords(x, mask=None):
        return model(x) * mask

    def of_a_batch(batch):
        return model(batch.x) * batch.scale

    masks = [{"x": x, "mask": (x > 0).float()} for (x,) in inputs(device)]
    assert not pianola.audit(of_keywords, batches=masks).findings
    assert not pianola.audit(of_a_batch, batches=[Batch(x) for (x,) in inputs(device)]).findings
    assert not pianola.audit(of_keywords, batches=({"x": x, "mask": x} for (x,) in inputs(device, 2))).findings
    assert not pianola.audit(model, batches=[x for (x,) in inputs(device)]).findings


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


# --- Arguments and results of audit() ---


def test_bad_arguments():
    with pytest.raises(pianola.UsageError, match="iterations must be 2 or more, got 1"):
        pianola.audit(lambda: None, iterations=1)
    with pytest.raises(pianola.UsageError, match="a int cannot be audited"):
        pianola.audit(3)
    with pytest.raises(pianola.UsageError, match="batches is empty"):
        pianola.audit(lambda x: x, batches=[])
    with pytest.raises(pianola.UsageError, match="batches must be a list"):
        pianola.audit(lambda x: x, batches=torch.ones(3))


def test_between_counts_the_runs_where_it_wants_to(device):
    seen, calls = [], []

    def step(x):
        calls.append(1)
        return x * 2

    pianola.audit(step, batches=inputs(device), between=lambda runs: seen.append((runs, len(calls))), trial=False)
    assert seen[:3] == [(1, 1), (2, 2), (3, 3)]


def test_nothing_to_record():
    report = pianola.audit(lambda: None, trial=False)
    assert [one.rule for one in report.findings] == ["PG1201"]


def test_the_report(device):
    count = 0

    def step(x):
        nonlocal count
        count += 1
        return x * 2

    report = pianola.audit(step, batches=inputs(device))
    (finding,) = report.findings
    assert (finding.rule, finding.kind, finding.severity) == ("PG803", "host-counter", "wrong numbers")
    assert (finding.function, finding.file) == ("step", __file__) and finding.fix and finding.iteration == 1
    assert report.subject == "step" and report.iterations == 3 and report.operations == 1 and report.device == str(device)
    assert not report.ok and report.exit_code == 3 and report.worst == "wrong numbers"
    assert str(report) == report.to_text() and "PG803" in report.to_text()
    assert json.loads(report.to_json())["findings"][0]["place"]["line"] == finding.line
    assert json.loads(report.to_sarif())["version"] == "2.1.0"


def test_rules():
    rules = _C.hazard_rules()
    assert len({rule.id for rule in rules}) == len({rule.kind for rule in rules}) == len(rules)
    assert all(rule.title and rule.why and rule.fix and rule.severity for rule in rules)
    with pytest.raises(pianola.UsageError):
        _C.Finding("PG999")


def test_report_of_python_s_making():
    finding = _C.Finding("PG801", place=("step", "a.py", 3), what="so it is", times=2)
    assert (finding.function, finding.file, finding.line, finding.times) == ("step", "a.py", 3, 2)
    assert finding.severity == "wrong numbers" and _C.Finding("PG801", severity="style").severity == "style"


# --- The watch ---


def test_another_profiler_is_put_back(device):
    events = []

    def profiler(frame, event, argument):
        events.append(event)

    sys.setprofile(profiler)
    try:
        pianola.audit(lambda x: x * 2, batches=inputs(device))
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(None)
    assert events


def test_a_step_may_set_a_profiler_of_its_own(device):
    def step(x):
        sys.setprofile(None)
        return x * 2

    assert not pianola.audit(step, batches=inputs(device)).findings
    assert sys.getprofile() is None


def test_the_tracer_is_put_back(device):
    count = 0

    def step(x):
        nonlocal count
        count += 1
        return x * 2

    def tracer(frame, event, argument):
        return None

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        pianola.audit(step, batches=inputs(device), trial=False)
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)


def test_paths_of_modules(device):
    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList([torch.nn.Sequential(Reads()) for _ in range(2)])

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    class Reads(torch.nn.Module):
        def forward(self, x):
            x.tolist()
            return x * x.sum().item()

    model = Outer().to(device)
    report = pianola.audit(lambda x: model(x), batches=inputs(device), trial=False)
    assert {(one.rule, one.module) for one in report.findings if one.rule in ("PG101", "PG103")} == {
        ("PG101", "model.layers.0.0"),
        ("PG103", "model.layers.0.0"),
    }


# --- What is reachable ---


module_wide = {"weight": torch.zeros(3)}


def uses_module_wide():
    return module_wide["weight"]


def test_what_a_step_can_reach():
    model = MLP(layers=2)
    optimizer = torch.optim.SGD([{"params": model.parameters(), "lr": 0.1}], lr=torch.tensor(0.2), momentum=0.9)
    state = State(names={"a": [torch.ones(1)]})
    optimizer.state[model.layers[0].weight] = {"momentum_buffer": torch.zeros(16, 16)}

    def step(first, second=torch.zeros(1)):
        return model, optimizer, state, uses_module_wide()

    bound = functools.partial(step, torch.ones(2))
    walk = Walk(roots_of(bound))
    tensors = dict(walk.tensors())
    assert tensors.keys() >= {
        "args[0]", "second", "model.layers.0.weight", "model.layers.1.bias", "state.names['a'][0]", "module_wide['weight']",
        "optimizer.state[model.layers.0.weight]['momentum_buffer']",
    }  # fmt: skip
    assert walk.marks["state.scale"].value == 1.0 and walk.marks["optimizer.param_groups[0]['lr']"].value == 0.1
    assert walk.modules[model.layers[1]] == "model.layers.1" and walk.optimizers == {optimizer: "optimizer"}
    assert not [path for path in walk.marks if "_hooks" in path]


def test_where_a_keyword_is_used():
    def calls(f):
        f(1)
        f(2, create_graph=True)  # PG1007

    place = _line_with_keyword("create_graph", [calls.__code__])
    assert ("PG1007", place.line) in marked(test_where_a_keyword_is_used) and place.function == "calls"


def test_a_look_keeps_nothing_alive():
    holder = types.SimpleNamespace(tensor=torch.zeros(3))
    walk = Walk(roots_of(lambda: holder))
    assert [path for path, _ in walk.tensors()] == ["holder.tensor"]
    before = walk.marks["holder.tensor"]
    holder.tensor = torch.zeros(3)
    assert not list(walk.tensors()) and before != Walk(roots_of(lambda: holder)).marks["holder.tensor"]


@pytest.mark.parametrize(
    "before, after, moved",
    [
        ([1, 2], [1, 2, 3], True),
        ([1, 2], [1, 3], False),
        ({"a": 1}, {"a": 2}, False),
        ({"a": 1}, {"b": 1}, True),
        ({1, 2}, {1, 3}, True),
        (collections.deque([1, 2]), collections.deque([2, 3]), True),
    ],
)
def test_members_of_containers(before, after, moved):
    assert has_other_members(mark_of(before), mark_of(after)) == moved


# --- The command ---

SCRIPT = """
import torch
model = torch.nn.Linear(4, 4)
seen = []
batches = [(torch.randn(2, 4),) for _ in range(3)]

def step(x):
    seen.append(1)
    return model(x)

def clean(x):
    return model(x)

def make_clean():
    print("making")
    return clean, {"batches": [torch.ones(1, 4)] * 2}

def make_nothing():
    raise ValueError("nothing")

if __name__ == "__main__":
    raise SystemExit("this part must not run")
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("script") / "script.py"
    path.write_text(SCRIPT)
    return path


def command(*arguments):
    return subprocess.run([sys.executable, "-m", "pianola", *arguments], capture_output=True, text=True)


def test_the_command_tells_hazards(script, tmp_path):
    ran = command("audit", f"{script}:step", "--sarif", str(tmp_path / "out.sarif"), "--json", str(tmp_path / "out.json"))
    assert ran.returncode == 3 and "PG801" in ran.stdout and "script.py:8" in ran.stdout, ran.stderr
    assert json.loads((tmp_path / "out.json").read_text())["findings"][0]["rule"] == "PG801"
    assert json.loads((tmp_path / "out.sarif").read_text())["version"] == "2.1.0"


def test_the_command_of_a_clean_step(script):
    ran = command("audit", f"{script}:make_clean", "--json", "-", "--no-trial", "--iterations", "2", "--device", "cpu")
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert report["findings"] == [] and report["iterations"] == 2 and "making" in ran.stderr


def test_the_command_explains_itself():
    ran = command("audit", "--help")
    assert ran.returncode == 0 and "script.py:function" in ran.stdout and "exit code" in ran.stdout


@pytest.mark.parametrize(
    "arguments, code, text",
    [
        (["{}:make_nothing"], 1, "ValueError: nothing"),
        (["{}:nowhere"], 2, "has no 'nowhere'"),
        (["{}"], 2, "names no function"),
        (["{}:clean", "--iterations", "1"], 2, "iterations must be 2 or more"),
        (["{}:clean", "--nonsense"], 2, "unrecognized arguments"),
        (["missing.py:step"], 2, "there is no file"),
    ],
)
def test_how_the_command_fails(script, arguments, code, text):
    ran = command("audit", *(one.format(script) for one in arguments))
    assert ran.returncode == code and text in ran.stderr, ran.stderr


def test_an_audit_keeps_nothing_alive(device):
    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(16, 16)
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return self.inner(x)

    model = Own().to(device)
    gone = [weakref.ref(model), weakref.ref(model.inner.weight), weakref.ref(Own)]
    report = pianola.audit(lambda x: model(x), batches=inputs(device))
    del model, Own
    gc.collect()
    assert report.findings and [one() for one in gone] == [None] * 3
