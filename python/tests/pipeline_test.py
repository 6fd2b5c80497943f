"""Pipeline orders: Transformer Engine's `_order`, and Schedule."""

import pytest
import torch

import pianola
from twins import MLP, assert_same_state, batches


ORDER = [1, 2, 1, 2, -2, -1, -2, -1]


def pipeline(device, **options):
    """Two chunks of one and two layers, two microbatches."""
    torch.manual_seed(5)
    layers = [MLP(layers=1).to(device) for _ in range(3)]
    sample = torch.randn(4, 16, device=device, requires_grad=True)
    functions = pianola.make_graphed_callables(
        tuple(layers), tuple((sample.detach().clone().requires_grad_(),) for _ in range(6)), _order=ORDER,
        _num_layers_per_chunk=[1, 2], **options
    )  # fmt: skip
    return layers, functions


@pytest.mark.parametrize("clone", [None, True, False])
def test_a_pipeline_order_gives_one_function_per_layer_and_microbatch(device, clone):
    layers, functions = pipeline(device, _reuse_graph_input_output_buffers=True, clone_param_grads_on_return=clone)
    torch.manual_seed(5)
    eager = [MLP(layers=1).to(device) for _ in range(3)]
    assert len(functions) == 6
    chunks = {1: [[functions[m]] for m in range(2)], 2: [functions[2 + 2 * m : 4 + 2 * m] for m in range(2)]}
    for iteration in range(3):
        for module in (*layers, *eager):
            module.zero_grad()
        inputs = {(c, m): b for (c, m), b in zip([(1, 0), (1, 1), (2, 0), (2, 1)], batches(4, (4, 16), device, iteration))}
        forwards, backwards, outputs = {1: 0, 2: 0}, {1: 0, 2: 0}, {}
        for entry in ORDER:
            chunk, forward = abs(entry), entry > 0
            if forward:
                m = forwards[chunk]
                forwards[chunk] += 1
                y = inputs[chunk, m].clone().requires_grad_()
                for function in chunks[chunk][m]:
                    y = function(y)
                outputs[chunk, m] = y
            else:
                m = backwards[chunk]
                backwards[chunk] += 1
                outputs.pop((chunk, m)).square().sum().backward()
        for entry in ORDER:  # eager: the sum over microbatches in the order of the backwards
            if entry > 0:
                continue
            chunk = -entry
            m = backwards[chunk] - 2
            backwards[chunk] += 1
            y = inputs[chunk, m].clone().requires_grad_()
            for module in eager[:1] if chunk == 1 else eager[1:]:
                y = module(y)
            y.square().sum().backward()
        for one, other in zip(eager, layers):
            assert_same_state(one, other)


def test_a_microbatch_out_of_turn_is_refused(device):
    _, functions = pipeline(device)
    x = torch.randn(4, 16, device=device, requires_grad=True)
    with pytest.raises(pianola.ScheduleError, match="expected microbatch 1 of this layer, got microbatch 2"):
        functions[1](x)
    with pytest.raises(pianola.ScheduleError, match="expected forward of chunk 1, microbatch 1"):
        functions[2](x)


def test_samples_of_an_order_have_to_fit(device):
    x = torch.randn(4, 16, device=device, requires_grad=True)
    with pytest.raises(pianola.UsageError, match="1 layers and 2 microbatches, which need 2 sample_args, got 1"):
        pianola.make_graphed_callables((MLP().to(device),), ((x,),), _order=[1, 1, -1, -1])
    with pytest.raises(pianola.UsageError, match="the samples of layer 1 differ between microbatch 1 and 2"):
        pianola.make_graphed_callables((MLP().to(device),), ((x,), (x[:2],)), _order=[1, 1, -1, -1])


def test_callables_are_divided_evenly_among_the_chunks(device):
    def run(**options):
        torch.manual_seed(5)
        layers = [MLP(layers=1).to(device) for _ in range(4)]
        sample = torch.randn(4, 16, device=device, requires_grad=True)
        functions = pianola.make_graphed_callables(
            tuple(layers), tuple((sample.detach().clone().requires_grad_(),) for _ in range(8)), _order=ORDER, **options
        )
        chunks = {(c, m): functions[4 * c + 2 * m : 4 * c + 2 * m + 2] for c in range(2) for m in range(2)}
        outputs = []
        inputs = iter(batches(4, (4, 16), device))
        for c, m in ((0, 0), (1, 0), (0, 1), (1, 1)):
            y = next(inputs)
            y.requires_grad_()
            for function in chunks[c, m]:
                y = function(y)
            outputs.append(y)
        for y in (outputs[1], outputs[0], outputs[3], outputs[2]):
            y.square().sum().backward()
        return layers

    for one, other in zip(run(), run(_num_layers_per_chunk=2)):
        assert_same_state(one, other)
        assert all(parameter.grad is not None for parameter in one.parameters())


def test_callables_that_cannot_be_divided_are_refused(device):
    x = torch.randn(4, 16, device=device, requires_grad=True)
    layers = tuple(MLP(layers=1).to(device) for _ in range(3))
    with pytest.raises(pianola.ScheduleError, match="_order has 2 chunks, and 3 callables cannot be divided") as refused:
        pianola.make_graphed_callables(layers, ((x,),) * 6, _order=ORDER)
    assert "_num_layers_per_chunk" in refused.value.fix


def test_a_schedule_object_patches_the_modules(device):
    torch.manual_seed(5)
    model = MLP().to(device)
    x = torch.randn(4, 16, device=device, requires_grad=True)
    schedule = pianola.Schedule.one_f_one_b(pipeline_size=2, microbatches=4, rank=0)
    (graphed,) = pianola.make_graphed_callables((model,), ((x,),), schedule=schedule)
    assert graphed is model
    first, second = model(x), model(x)
    first.sum().backward()
    with pytest.raises(pianola.ScheduleError):
        second.sum().backward(), second.sum().backward()
