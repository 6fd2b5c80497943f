"""What recording on the tape changes for Python code: host reads are refused, and nothing else is another than in eager."""

import copy
import io
import pickle
import threading

import numpy
import pianola
import pytest
import torch
from torch import nn

from twins import assert_same, batches

READS = {
    "numpy": (lambda x: x.numpy(), "Tensor.numpy", "PG103"),
    "tolist": (lambda x: x.tolist(), "Tensor.tolist", "PG103"),
    "cpu": (lambda x: x.cpu(), "Tensor.cpu", "PG103"),
    "asarray": (numpy.asarray, "Tensor.__array__", "PG103"),
    "repr": (repr, "Tensor.__repr__", "PG104"),
    "format": (lambda x: f"{x}", "Tensor.__repr__", "PG104"),
    "pickle": (pickle.dumps, "pickle", "PG103"),
    "save": (lambda x: torch.save({"x": x}, io.BytesIO()), "torch.save", "PG103"),
    "parameter": (lambda x: pickle.dumps(nn.Parameter(x)), "pickle", "PG103"),
    "dlpack": (lambda x: numpy.from_dlpack(x), "Tensor.__dlpack__", "PG103"),
    "to_dlpack": (lambda x: torch.utils.dlpack.to_dlpack(x), "to_dlpack()", "PG103"),
    "storage": (lambda x: x.untyped_storage()[0], "UntypedStorage.__getitem__", "PG103"),
    "storage_list": (lambda x: x.untyped_storage().tolist(), "UntypedStorage.tolist", "PG103"),
    "bytes": (lambda x: bytes(x.untyped_storage()), "UntypedStorage.__getitem__", "PG103"),
    "storage_pickle": (lambda x: pickle.dumps(x.untyped_storage()), "pickle", "PG103"),
}

# A warm-up call really runs: what is seen there is the call that the user made, or the operation that ran at last.
OBSERVED = {
    "format": "Tensor.__format__",
    "pickle": "pickle copies a tensor's values; a replay",
    "save": "torch.save copies tensors to a file",
    "parameter": "pickle copies a tensor's values; a replay",
    "storage": "aten::item",
    "storage_list": "aten::item",
    "bytes": "aten::item",
    "storage_pickle": "pickle copies a tensor's values; a replay",
}


@pytest.mark.parametrize("name", READS)
def test_a_read_that_no_operation_shows_is_refused(name):
    read, words, rule = READS[name]
    x = torch.ones(3)
    with pytest.raises(pianola.CaptureError) as refused:
        pianola.Graph("cpu").capture(lambda: read(x + 1))
    error = refused.value
    assert error.what.startswith(f"{words}") and "reads a tensor's values on the host" in error.what
    assert error.rule == rule and "recording_test.py:" in error.where
    read(x)


@pytest.mark.parametrize("name", READS)
def test_a_graphed_function_that_reads_so_stays_eager(name):
    read, words, _ = READS[name]
    reasons = []

    @pianola.graphed(warmup=1, islands="marked", on_fallback=reasons.append)
    def step(x):
        read(x + 1)
        return x * 2

    for x in batches(4, (3,), torch.device("cpu")):
        assert_same("result", step(x), x * 2)
    assert len(reasons) == 1 and OBSERVED.get(name, words) in reasons[0], reasons


@pytest.mark.parametrize("look", [copy.copy, copy.deepcopy, lambda x: x.data_ptr(), lambda x: x.untyped_storage().nbytes()])
def test_what_reads_no_values_is_captured(look):
    graph, kept = pianola.Graph("cpu"), []
    x = torch.ones(3)

    def step():
        look(x)
        kept.append(x * 2)

    graph.capture(step)
    x.fill_(3)
    graph.replay()
    assert_same("result", kept[-1], x * 2)


def test_nobody_can_tell_that_he_is_recorded():
    """Whoever asks for modes and overrides gets eager's answers, and computes what eager does."""
    answers = []

    def ask(x):
        answers.append(
            (
                torch.overrides.has_torch_function((x,)),
                torch._C._is_torch_function_mode_enabled(),
                torch._C._len_torch_function_stack(),
                torch.compiler.is_compiling(),
                torch.overrides.is_tensor_method_or_property(torch.Tensor.add),
            )
        )

    x = torch.ones(3)
    ask(x)
    pianola.Graph("cpu").capture(lambda: (ask(x), x + 1))
    assert len(answers) > 2 and len(set(answers)) == 1


def test_the_readers_are_torchs_own_again_afterwards():
    readers = ("numpy", "cpu", "tolist", "__array__", "__repr__", "__reduce_ex__", "__dlpack__")
    before = [getattr(torch.Tensor, name) for name in readers]
    own = set(vars(torch.Tensor))
    with pytest.raises(pianola.CaptureError):
        pianola.Graph("cpu").capture(lambda: torch.ones(2).numpy())
    x = torch.ones(2)
    pianola.Graph("cpu").capture(lambda: x + 1)
    assert [getattr(torch.Tensor, name) for name in readers] == before
    assert set(vars(torch.Tensor)) == own


def test_other_threads_read_while_one_records():
    begun, done = threading.Event(), threading.Event()
    values = []

    def read():
        begun.wait(20)
        values.extend(torch.arange(3).tolist())
        values.append(torch.ones(2).numpy().sum())
        done.set()

    thread = threading.Thread(target=read)
    thread.start()
    x = torch.ones(2)

    def step():
        begun.set()
        assert done.wait(20)
        return x + 1

    pianola.Graph("cpu").capture(step)
    thread.join()
    assert values == [0, 1, 2, 2.0]


FAST_PATHS = {
    "encoder_layer": lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True),
    "encoder": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2),
    "attention": lambda: SelfAttention(),
}


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


@pytest.mark.parametrize("name", FAST_PATHS)
def test_fast_paths_of_evaluation_are_taken_as_in_eager(name, device):
    model = FAST_PATHS[name]().to(device).eval()
    graphed = pianola.graphed(lambda x: model(x), warmup=1)
    graph, kept = pianola.Graph(device), {}
    static = torch.randn(2, 5, 16, device=device)
    with torch.inference_mode():
        graph.capture(lambda: kept.update(y=model(static)))
        for x in batches(4, (2, 5, 16), device):
            expected = model(x)
            assert_same("graphed", graphed(x), expected)
            static.copy_(x)
            graph.replay()
            assert_same("graph", kept["y"], expected)
    with torch.no_grad():
        report = pianola.verify(lambda x: model(x), pianola.graphed(lambda x: model(x)), inputs=[(static.clone(),)])
    assert report.verdict == "equal", report.to_text()
