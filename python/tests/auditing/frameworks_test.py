"""Distributed training, fp8, torch.compile."""

import sys
import types

import pytest
import torch

import pianola
from pianola import _C
from marked_steps import check, findings_of, found, inputs, marked
from twins import MLP


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
    assert {one for one in found(report, __file__) if one[0].startswith("PG11")} == marked(test_distributed_training)
    assert any(one.evidence == "TORCH_NCCL_ASYNC_ERROR_HANDLING is '1'" for one in report.findings)


def test_distributed_training_in_good_order(process_group, monkeypatch):
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))

    def step(x):
        model(x).sum().backward()

    report = pianola.audit(step, batches=inputs("cpu"), trial=False, capture_warmup=11)
    assert not {one for one in found(report, __file__) if one[0].startswith("PG11")}


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
    assert not findings_of(pianola.audit(step, batches=inputs(device)))


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
    assert found(report, __file__) == marked(test_a_function_that_was_compiled_before), f"{report}"


def test_a_module_that_is_compiled_and_trained(device):
    model = MLP().to(device)
    compiled = torch.compile(model, backend="eager")

    def step(x):
        loss = compiled(x).square().mean()
        loss.backward()
        return loss

    check(test_a_module_that_is_compiled_and_trained, step, batches=inputs(device))
