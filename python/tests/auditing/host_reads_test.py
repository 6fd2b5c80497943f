"""Values that the host takes, and waits for streams and devices."""

import logging

import pytest
import torch

import pianola
from marked_steps import check, findings_of, inputs

numpy = pytest.importorskip("numpy")


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
    assert [one.op for one in findings_of(report)] == ["print", "Tensor.__format__", "logging", "Tensor.__repr__"]


def test_a_copy_that_does_nothing_on_the_cpu_is_one_on_the_gpu(device):
    def step(x):
        y = (x * 2).to("cpu")  # PG103
        z = (x + 1).to(device="cpu")  # PG103
        return y.sum() + z.sum() + (x * 3).to(x.device).to(torch.float32).to(x.device).sum()

    own = device.type == "cpu"  # what is copied to the CPU is used there
    check(test_a_copy_that_does_nothing_on_the_cpu_is_one_on_the_gpu, step, exactly=own, batches=inputs(device))


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
