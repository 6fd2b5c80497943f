"""Megatron-LM's full iterations: megatron-core's own schedule and GPT, and functions of its signature."""

import contextlib
import functools
import os

import pianola
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from pianola.integrations.megatron import FullCudaGraphWrapper
from torch import nn
from twins import assert_same, assert_same_state

LENGTH, WORDS = 16, 64


# --- megatron-core ---


@pytest.fixture
def megatron(device, monkeypatch):
    """One rank. Its code asks for CUDA by name, also where a model is on the CPU."""
    core = pytest.importorskip("megatron.core")
    from megatron.core import parallel_state, tensor_parallel

    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setitem(os.environ, name, value)
    store = dist.HashStore()
    dist.init_process_group("gloo" if device.type == "cpu" else "nccl", store=store, rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    # Without dropout nothing is drawn, and nobody needs the tracker's states.
    monkeypatch.setattr(tensor_parallel.get_cuda_rng_tracker(), "fork", lambda *names: contextlib.nullcontext())
    if device.type == "cpu":
        zeros = torch.zeros

        def zeros_of_the_cpu(*sizes, device=None, **options):
            return zeros(*sizes, device="cpu" if device == "cuda" else device, **options)

        monkeypatch.setattr(torch, "zeros", zeros_of_the_cpu)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: torch.device("cpu"))
    yield core
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


def gpt(device):
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    torch.manual_seed(0)
    config = TransformerConfig(
        num_layers=2, hidden_size=32, num_attention_heads=4, use_cpu_initialization=True, hidden_dropout=0.0, attention_dropout=0.0,
        bias_dropout_fusion=False, masked_softmax_fusion=False, pipeline_dtype=torch.float32,
    )  # fmt: skip
    return GPTModel(config, get_gpt_layer_local_spec(), vocab_size=WORDS, max_sequence_length=LENGTH).to(device)


def texts(device, seed):
    generator = torch.Generator().manual_seed(seed)
    while True:
        tokens = torch.randint(WORDS, (2, LENGTH), generator=generator)
        batch = {
            "tokens": tokens,
            "labels": tokens.roll(-1, 1),
            "loss_mask": torch.ones(2, LENGTH),
            "position_ids": torch.arange(LENGTH).expand(2, LENGTH).contiguous(),
        }
        yield {name: one.to(device) for name, one in batch.items()}


def loss_func(loss_mask, output):
    loss = (output.float() * loss_mask).sum()
    return loss, loss_mask.sum().int(), {"lm loss": torch.stack([loss.detach(), loss_mask.sum()])}


def train_gpt(device, graphed, steps):
    from megatron.core.pipeline_parallel import get_forward_backward_func

    model = gpt(device)
    mask = torch.triu(torch.ones(LENGTH, LENGTH), 1).bool()[None, None].to(device)

    def forward_step(data_iterator, model):
        batch = next(data_iterator)
        output = model(batch["tokens"], batch["position_ids"], mask, labels=batch["labels"])
        return output, functools.partial(loss_func, batch["loss_mask"])

    run = get_forward_backward_func()
    if graphed:
        run = FullCudaGraphWrapper(run, cuda_graph_warmup_steps=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    training, validation = texts(device, 1), texts(device, 2)
    fixed = {"forward_step_func": forward_step, "model": [model], "seq_length": LENGTH, "micro_batch_size": 2, "decoder_seq_length": LENGTH}
    seen = []
    for step in range(steps):
        optimizer.zero_grad()
        losses = run(data_iterator=training, num_microbatches=3, forward_only=False, **fixed)
        optimizer.step()
        seen += [one["lm loss"].clone() for one in losses]
        if step % 3 == 0:
            model.eval()
            with torch.no_grad():
                losses = run(data_iterator=validation, num_microbatches=2, forward_only=True, **fixed)
            model.train()
            seen += [one["lm loss"].clone() for one in losses]
    return model, seen, run


def test_megatrons_own_gpt_and_schedule(megatron, device):
    eager, expected, _ = train_gpt(device, graphed=False, steps=50)
    model, losses, run = train_gpt(device, graphed=True, steps=50)
    for i, (one, other) in enumerate(zip(losses, expected, strict=True)):
        assert_same(f"loss {i}", one, other)
    assert_same_state(model, eager)
    assert sum(one.replays for one in run.info().signatures) >= 47, run.info()
    assert sum(one.replays for one in run.info("validation").signatures) >= 14, run.info("validation")


# --- Functions of its signature ---


def forward_backward(*, forward_step_func, data_iterator, model, num_microbatches, seq_length, forward_only=False):
    """Chunks of a model, in turn; as a pipeline's schedule calls them, each with an iterator of its own, or none."""
    losses = []
    for _ in range(num_microbatches):
        x = None
        for chunk, iterator in zip(model, data_iterator):
            x, loss = forward_step_func(iterator, chunk, x)
        losses.append(loss.detach())
        if not forward_only:
            loss.backward()
    return losses


def chunks(device):
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(8, 16), nn.Tanh()).to(device), nn.Linear(16, 16).to(device), nn.Linear(16, 4).to(device)]


def step_of_a_chunk(iterator, chunk, x):
    """The first chunk reads inputs, the last one targets, and what lies between reads nothing."""
    batch = None if iterator is None else next(iterator)
    y = chunk(batch if x is None else x)
    return y, F.mse_loss(y, batch) if x is not None and batch is not None else None


def noise(device, size, seed, rows=5):
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randn(rows, size, generator=generator).to(device)


def train_chunks(device, run, counts):
    model = chunks(device)
    optimizer = torch.optim.SGD([p for chunk in model for p in chunk.parameters()], lr=0.1, momentum=0.9)
    iterators = [noise(device, 8, 1), None, noise(device, 4, 2)]
    losses = []
    for count in counts:
        optimizer.zero_grad()
        losses += [
            one.clone()
            for one in run(
                forward_step_func=step_of_a_chunk, data_iterator=iterators, model=model, num_microbatches=count, seq_length=5, forward_only=False
            )
        ]
        optimizer.step()
    return losses, model


def test_chunks_with_iterators_of_their_own_or_none(device):
    counts = [2] * 10 + [4] * 10 + [2] * 5  # a batch size that is ramped up
    run = FullCudaGraphWrapper(forward_backward, warmup=2)
    (losses, model), (expected, eager) = train_chunks(device, run, counts), train_chunks(device, forward_backward, counts)
    for i, (one, other) in enumerate(zip(losses, expected, strict=True)):
        assert_same(f"loss {i}", one, other)
    for one, other in zip(model, eager):
        assert_same_state(one, other)
    assert sum(one.replays for one in run.info().signatures) >= 18, run.info()


def test_after_reset_it_warms_up_again(device):
    run = FullCudaGraphWrapper(forward_backward)
    train_chunks(device, run, [2] * 6)
    assert run.info().signatures[0].replays > 0
    run.reset_cuda_graph("training")
    assert not run.info().signatures
    run.reset_cuda_graph()
    losses, _ = train_chunks(device, run, [2] * 6)
    for one, other in zip(losses, train_chunks(device, forward_backward, [2] * 6)[0], strict=True):
        assert_same("a loss", one, other)


def test_a_loader_that_ends_tells_so_as_ever(cpu):
    run = FullCudaGraphWrapper(forward_backward)
    with pytest.raises(StopIteration):
        run(forward_step_func=step_of_a_chunk, data_iterator=[iter([])], model=chunks(cpu), num_microbatches=1, seq_length=5)


def test_wrong_arguments_are_named(cpu):
    with pytest.raises(pianola.UsageError, match="FullCudaGraphWrapper was given int, which cannot be called"):
        FullCudaGraphWrapper(3)
    run = FullCudaGraphWrapper(forward_backward)
    with pytest.raises(pianola.UsageError, match="the forward_backward_func was given positional arguments"):
        run(step_of_a_chunk)
    with pytest.raises(pianola.UsageError, match="the forward_backward_func was given no num_microbatches"):
        run(data_iterator=None, model=None)
    with pytest.raises(pianola.UsageError, match="there is no stage 'test'"):
        run.info("test")
