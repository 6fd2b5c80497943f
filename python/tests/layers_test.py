"""The layers of a model, each graphed by itself: `pianola.graph_layers`."""

import gc
import logging
import weakref

import pianola
import pytest
import torch
import torch.nn.functional as F
from layer_programs import (
    Albert,
    Attention,
    Block,
    ConvNeXt,
    Gpt,
    Mlp,
    ResNet,
    SparseMoe,
    UNet,
    WORDS,
    accumulating,
    assert_equal,
    autocast,
    evaluating,
    evaluating_before_the_backward_pass,
    four_in_flight,
    images,
    interleaved,
    keeping_hidden_states,
    on_noise,
    one_forward_one_backward,
    other_shapes,
    plain,
    replays_of,
    words,
)
from torch import nn


@pytest.mark.parametrize(
    "loop",
    [
        plain,
        accumulating,
        four_in_flight,
        one_forward_one_backward,
        evaluating,
        evaluating_before_the_backward_pass,
        autocast,
        keeping_hidden_states,
    ],
    ids=lambda loop: loop.__name__,
)
def test_a_language_model_in_an_unchanged_loop(loop, device):
    _, graphed = assert_equal(Gpt, loop, device)
    assert graphed.names == ("h.0", "h.1", "h.2")


def test_a_pipeline_of_two_ranks_with_two_chunks_each(device):
    assert_equal(lambda: Gpt(layers=4), interleaved, device)


def test_batches_of_three_sizes(device):
    assert_equal(Gpt, other_shapes, device, replays=50 - 3 * 4)


@pytest.mark.parametrize("loop", [plain, accumulating, four_in_flight], ids=lambda loop: loop.__name__)
def test_layers_that_are_checkpointed_with_reentry(loop, device):
    assert_equal(lambda: Gpt(checkpointing=True), loop, device)


@pytest.mark.parametrize("loop", [plain, four_in_flight], ids=lambda loop: loop.__name__)
def test_layers_that_are_checkpointed_without_reentry_stay_eager(loop, device, caplog):
    with caplog.at_level(logging.WARNING, "pianola"):
        _, graphed = assert_equal(lambda: Gpt(checkpointing=False), loop, device, steps=20, replays=0)
    assert not any(replays_of(graphed).values())
    assert len(caplog.messages) == 1 and "hooks on saved tensors" in caplog.messages[0], caplog.messages


@pytest.mark.parametrize("loop", [plain, accumulating, four_in_flight], ids=lambda loop: loop.__name__)
def test_one_block_that_is_called_four_times(loop, device):
    assert_equal(Albert, loop, device, steps=20, graph=lambda model: pianola.graph_layers(model, Block, max_in_flight=16), replays=40)


@pytest.mark.parametrize("loop", [plain, accumulating], ids=lambda loop: loop.__name__)
def test_a_weight_that_two_layers_and_the_head_have(loop, device):
    class Tied(Gpt):
        def __init__(self):
            super().__init__()
            self.h[2].mlp = self.h[0].mlp

        def forward(self, ids):
            return super().forward(ids) + self.h[1].mlp.up.weight.square().mean()

    assert_equal(Tied, loop, device, steps=20)


def test_a_convolutional_network_with_running_statistics(device):
    def loop(model, optimizer, step, device):
        optimizer.zero_grad()
        images = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(step)).to(device)
        loss = F.cross_entropy(model(images), torch.arange(4, device=device))
        loss.backward()
        optimizer.step()
        return [loss]

    _, graphed = assert_equal(ResNet, loop, device)
    assert graphed.names == ("layer1.0", "layer1.1", "layer2.0", "layer2.1", "layer2.2")


@pytest.mark.parametrize("make", [UNet, ConvNeXt])
def test_blocks_that_others_are_connected_across(make, device):
    def loop(model, optimizer, step, device):
        optimizer.zero_grad()
        losses = []
        for i in range(2):
            x = images(2 * step + i, device)
            losses.append(F.mse_loss(model(x), x))
            losses[-1].backward()
        optimizer.step()
        return losses

    assert_equal(make, loop, device)


def test_torchs_own_transformer(device):
    def make():
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        return nn.Sequential(nn.Embedding(WORDS, 32), nn.TransformerEncoder(layer, 3), nn.Linear(32, WORDS))

    _, graphed = assert_equal(make, evaluating, device)
    assert graphed.names == ("1.layers.0", "1.layers.1", "1.layers.2")


def test_experts_whose_tokens_the_host_counts_stay_eager_alone(device, caplog):
    with caplog.at_level(logging.WARNING, "pianola"):
        _, graphed = assert_equal(
            lambda: Gpt(layers=4, moe=True), plain, device, graph=lambda model: pianola.graph_layers(model, [Attention, Mlp, SparseMoe]),
            replays=0,
        )
    replays = replays_of(graphed)
    assert [name for name, count in replays.items() if count < 40] == ["h.1.mlp", "h.3.mlp"], graphed.info()
    assert len(caplog.messages) == 1 and caplog.messages[0].startswith("layer h.1.mlp runs eagerly: "), caplog.messages
    assert "h.1.mlp and 1 other: " in str(graphed.info())


def test_a_checkpoint_that_is_loaded_in_the_middle(device):
    def loop(model, optimizer, step, device):
        if step == 20:
            model.__dict__["saved"] = {name: value.clone() for name, value in model.state_dict().items()}
        if step == 30:
            model.load_state_dict(model.__dict__.pop("saved"))
        return plain(model, optimizer, step, device)

    assert_equal(Gpt, loop, device)


def test_layers_that_are_skipped_or_called_more_often(device):
    class Dropping(Gpt):
        def forward(self, ids):
            self.__dict__["calls"] = self.__dict__.get("calls", 0) + 1
            x = self.tokens(ids)
            for number, block in enumerate(self.h):
                if (self.calls + number) % 4 != 0:
                    x = block(x)
                if (self.calls + number) % 5 == 0:
                    x = block(x)
            return self.head(self.norm(x))

    assert_equal(Dropping, plain, device, replays=30)


def test_gradients_that_reach_a_parameter_through_a_view(device):
    class Prompted(nn.Module):
        def __init__(self):
            super().__init__()
            self.prompt = nn.Parameter(torch.randn(1, 24))
            self.layers = nn.ModuleList(Mlp(8, 0.0) for _ in range(2))

        def forward(self, x):
            x = torch.cat([self.prompt.view(1, 3, 8).expand(1, -1, -1), x], 1)
            for layer in self.layers:
                x = layer(x)
            return x

    def loop(model, optimizer, step, device):
        if step % 3 == 0:
            optimizer.zero_grad(set_to_none=step % 2 == 0)
        losses = []
        for i in range(2):
            x = torch.randn(1, 4, 8, generator=torch.Generator().manual_seed(2 * step + i)).to(device)
            losses.append(model(x).square().mean())
            losses[-1].backward()
        optimizer.step()
        return [*losses, model.prompt.grad]

    assert_equal(Prompted, loop, device, steps=20)


def test_a_layer_that_returns_its_input_too(device):
    class Passing(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Mlp(8, 0.0)

        def forward(self, x):
            return x * x.tanh() + self.inner(x), x

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.layers = nn.Linear(8, 8), nn.ModuleList(Passing() for _ in range(3))

        def forward(self, x):
            x, total = self.first(x), 0
            for layer in self.layers:
                y, same = layer(x)
                assert same is x
                total, x = total + (same * y).mean() + x.sin().mean(), y
            return total + x.square().mean()

    assert_equal(Model, on_noise, device, steps=20)


def test_one_tensor_for_two_arguments_and_across(device):
    class Attending(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

        def forward(self, x, memory):
            return self.q(x) * self.k(memory) + torch.tanh(self.v(memory))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.layers = nn.Linear(8, 8), nn.ModuleList(Attending() for _ in range(2))

        def forward(self, x):
            x = self.first(x)
            for layer in self.layers:
                x = x + layer(x, x)
            return x.square().mean()

    assert_equal(Model, on_noise, device, steps=20)


def test_forward_passes_without_a_backward_pass_before_training(device):
    def loop(model, optimizer, step, device):
        if step == 0:
            for i in range(3):
                model(words(i, device))
        return accumulating(model, optimizer, step, device)

    graph = lambda model: pianola.graph_layers(model, Block, max_in_flight=16)  # noqa: E731
    assert_equal(Albert, loop, device, steps=20, graph=graph, replays=40)


def test_a_hook_that_a_layer_sets_on_its_input_keeps_it_eager(device, caplog):
    class Halving(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x):
            x.register_hook(lambda gradient: gradient * 0.5)
            return self.inner(x)

    def make():
        return nn.Sequential(nn.Linear(8, 8), nn.Sequential(Halving(), Halving()), nn.Linear(8, 1))

    with caplog.at_level(logging.WARNING, "pianola"):
        assert_equal(make, on_noise, device, steps=10, graph=lambda model: pianola.graph_layers(model, Halving), replays=0)
    assert "the callable sets a hook on input 0" in caplog.messages[0]


def test_parametrized_weights_that_are_cached(device):
    def make():
        model = nn.Sequential(nn.Embedding(WORDS, 8), nn.Sequential(*(Mlp(8, 0.0) for _ in range(2))), nn.Linear(8, WORDS))
        for layer in model[1]:
            nn.utils.parametrizations.weight_norm(layer.up)
        return model

    def loop(model, optimizer, step, device):
        if step % 2:
            return plain(model, optimizer, step, device)
        with nn.utils.parametrize.cached():
            return plain(model, optimizer, step, device)

    assert_equal(make, loop, device, steps=20, replays=0)


# --- Which layers ---


def test_layers_are_found_by_name_class_module_and_function(cpu):
    def names(which):
        model = Gpt()
        graphed = pianola.graph_layers(model, which(model) if callable(which) and not isinstance(which, type) else which)
        graphed.remove()
        return graphed.names

    blocks = ("h.0", "h.1", "h.2")
    assert names("h") == names(lambda model: model.h) == blocks  # a list, which nobody calls
    assert names(None) == names("h.?") == names(Block) == names(lambda model: list(model.h)) == blocks
    assert names(["h.1", "h.0"]) == ("h.0", "h.1")
    assert names(lambda model: lambda name, module: name.endswith("attn")) == ("h.0.attn", "h.1.attn", "h.2.attn")
    assert names(["h.0", Attention]) == ("h.0", "h.1.attn", "h.2.attn")  # not what is inside of h.0


def test_lists_of_lists_are_looked_into(cpu):
    class Stages(nn.Module):
        def __init__(self):
            super().__init__()
            self.stages = nn.Sequential(*(nn.Sequential(Block(), Block()) for _ in range(2)))
            self.heads = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))  # one operation each: no graph pays

    graphed = pianola.graph_layers(Stages())
    assert graphed.names == ("stages.0.0", "stages.0.1", "stages.1.0", "stages.1.1")


@pytest.mark.parametrize(
    "which, message",
    [
        ("hh.*", "no module of Gpt has a name like 'hh.*'"),
        ("h.00", "no module of Gpt has a name like 'h.00'; 'h.0' is near"),
        (nn.Conv2d, "no module of Gpt is among the layers that were asked for"),
        (nn.Linear(1, 1), "a Linear is among the layers, and is no module of Gpt"),
        (3, "layers has a int"),
    ],
)
def test_layers_that_are_not_there_are_refused(which, message, cpu):
    with pytest.raises(pianola.UsageError, match=message.replace("*", r"\*")):
        pianola.graph_layers(Gpt(), which)


def test_what_is_no_model_is_refused(cpu):
    script = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    with pytest.raises(pianola.UsageError, match="the layers of a TorchScript module cannot be patched"):
        pianola.graph_layers(script)
    with pytest.raises(pianola.UsageError, match="apply_config was given a function"):
        pianola.apply_config(lambda x: x, pianola.CudaGraphConfig())


def test_a_model_without_a_list_of_layers_is_refused(cpu):
    with pytest.raises(pianola.UsageError, match="Linear has no list of like layers"):
        pianola.graph_layers(nn.Linear(2, 2))
    with pytest.raises(pianola.UsageError, match="graph_layers was given a function"):
        pianola.graph_layers(lambda x: x)


def test_a_layer_that_is_graphed_already_is_refused_and_no_other_one_is_touched(cpu):
    model = Gpt()
    first = pianola.graph_layers(model, "h.1")
    with pytest.raises(pianola.UsageError, match="layer h.1 is graphed already"):
        pianola.graph_layers(model)
    assert "forward" not in model.h[0].__dict__
    first.remove()
    assert len(pianola.graph_layers(model)) == 3


# --- Afterwards ---


def test_after_reset_all_layers_warm_up_again_and_after_remove_they_are_themselves(device):
    model, graphed = assert_equal(Gpt, plain, device, steps=8)
    graphed.reset_all()
    assert all(not layer.info.signatures for layer in graphed.info().layers)
    ids = words(0, device, batch=5)
    model(ids).mean().backward()
    assert graphed["h.0"].info().signatures[0].eager_calls == 1
    graphed.remove()
    assert all("forward" not in block.__dict__ for block in model.h)
    model(ids).mean().backward()
    with pytest.raises(pianola.UsageError, match="no graphed layer has the name 'h.7'"):
        graphed["h.7"]


def test_a_model_with_graphed_layers_is_collected(device):
    model, graphed = assert_equal(Gpt, plain, device, steps=8)
    gone = weakref.ref(model)
    del model, graphed
    gc.collect()
    assert gone() is None


def test_the_report_has_a_line_for_each_layer(cpu):
    model, graphed = assert_equal(Gpt, plain, "cpu", steps=8)
    lines = str(graphed.info()).splitlines()
    assert lines[0] == "Graphed layers"
    assert [line.split()[:2] for line in lines if line.startswith("  h.")] == [[name, "captured"] for name in graphed.names]
    assert list(graphed) == list(graphed.names) and len(graphed) == 3


def test_a_layer_behind_a_function_of_the_users_that_changes_is_a_graph(device):
    """What lies behind a layer's input is not the layer's: here the backward of others, with another number at each call."""

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, number):
            ctx.number = number
            return x * number

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.number, None

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last, self.calls = nn.Linear(8, 8), nn.Linear(8, 8), 0

        def forward(self, x):
            self.calls += 1
            return self.last(Scale.apply(self.first(x), 1 + self.calls % 5))

    _, graphed = assert_equal(Model, on_noise, device, steps=20, graph=lambda model: pianola.graph_layers(model, ["first", "last"]))
    assert all(count >= 16 for count in replays_of(graphed).values())
