"""The layers of a model, each graphed by itself: `pianola.graph_layers` and `pianola.apply_config`."""

import gc
import logging
import weakref

import pianola
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from twins import assert_same, assert_same_state

WORDS = 50


def words(seed, device, batch=2, length=12):
    return torch.randint(WORDS, (batch, length), generator=torch.Generator().manual_seed(seed)).to(device)


# --- Models as people write them ---


class Attention(nn.Module):
    def __init__(self, size, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)

    def forward(self, x):
        batch, length, size = x.shape
        q, k, v = (each.view(batch, length, self.heads, -1).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        future = torch.full((length, length), float("-inf"), device=x.device).triu(1)
        weights = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + future).softmax(-1)
        seen = F.dropout(weights, self.dropout, self.training) @ v
        return self.out(seen.transpose(1, 2).reshape(batch, length, size))


class Mlp(nn.Module):
    def __init__(self, size, dropout):
        super().__init__()
        self.up, self.down, self.dropout = nn.Linear(size, 4 * size), nn.Linear(4 * size, size), nn.Dropout(dropout)

    def forward(self, x):
        return self.dropout(self.down(F.gelu(self.up(x))))


class SparseMoe(nn.Module):
    """As many write it: the host asks for the tokens of each expert."""

    def __init__(self, size, experts):
        super().__init__()
        self.gate = nn.Linear(size, experts, bias=False)
        self.experts = nn.ModuleList(Mlp(size, 0.0) for _ in range(experts))

    def forward(self, x):
        tokens = x.reshape(-1, x.shape[-1])
        weights, chosen = self.gate(tokens).softmax(-1).topk(2)
        result = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            token, place = (chosen == number).nonzero(as_tuple=True)
            result = result.index_add(0, token, expert(tokens[token]) * weights[token, place, None])
        return result.view_as(x)


class Block(nn.Module):
    def __init__(self, size=32, heads=4, dropout=0.1, moe=False):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.attn = Attention(size, heads, dropout)
        self.mlp = SparseMoe(size, 4) if moe else Mlp(size, dropout)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self, layers=3, size=32, checkpointing=None, moe=False):
        super().__init__()
        self.tokens, self.places = nn.Embedding(WORDS, size), nn.Embedding(12, size)
        self.h = nn.ModuleList(Block(size, moe=moe and i % 2 == 1) for i in range(layers))
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, WORDS, bias=False)
        self.head.weight = self.tokens.weight
        self.checkpointing = checkpointing

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.h:
            x = block(x) if self.checkpointing is None else checkpoint(block, x, use_reentrant=self.checkpointing)
        return self.head(self.norm(x))


class Albert(nn.Module):
    """One block, four times."""

    def __init__(self, size=32):
        super().__init__()
        self.tokens, self.block, self.head = nn.Embedding(WORDS, size), Block(size), nn.Linear(size, WORDS)

    def forward(self, ids):
        x = self.tokens(ids)
        for _ in range(4):
            x = self.block(x)
        return self.head(x)


class ResNet(nn.Module):
    class Bottleneck(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
            self.bn1, self.bn2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

        def forward(self, x):
            return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)), inplace=True))), inplace=True)

    def __init__(self):
        super().__init__()
        self.stem, self.fc = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 10)
        self.layer1 = nn.Sequential(*(self.Bottleneck(8) for _ in range(2)))
        self.layer2 = nn.Sequential(*(self.Bottleneck(8) for _ in range(3)))

    def forward(self, x):
        return self.fc(self.layer2(F.max_pool2d(self.layer1(F.relu(self.stem(x))), 2)).mean((2, 3)))


class UNet(nn.Module):
    """A block's output goes to the next block, which uses it twice, and across."""

    class ResBlock(nn.Module):
        def __init__(self, channels, out):
            super().__init__()
            self.norm, self.skip = nn.GroupNorm(4, channels), nn.Conv2d(channels, out, 1)
            self.conv1, self.conv2 = nn.Conv2d(channels, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)

        def forward(self, x):
            return self.skip(x) + self.conv2(F.silu(self.conv1(F.silu(self.norm(x)))))

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 1)
        self.down = nn.ModuleList(self.ResBlock(8, 8) for _ in range(3))
        self.up = nn.ModuleList(self.ResBlock(16, 8) for _ in range(3))

    def forward(self, x):
        x, across = self.stem(x), []
        for block in self.down:
            x = block(x)
            across.append(x)
        for block in self.up:
            x = block(torch.cat([x, across.pop()], 1))
        return self.head(x)


class ConvNeXt(nn.Module):
    """Blocks permute what they compute with, so that their outputs and the gradients of these lie in memory in different ways."""

    class Block(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
            self.norm, self.mlp = nn.LayerNorm(channels), nn.Sequential(nn.Linear(channels, 32), nn.GELU(), nn.Linear(32, channels))
            self.scale = nn.Parameter(torch.full((channels, 1, 1), 1e-2))

        def forward(self, x):
            inner = self.mlp(self.norm(self.depthwise(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)
            return x + self.scale * inner

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 2, stride=2), nn.Conv2d(8, 3, 1)
        self.blocks = nn.Sequential(*(self.Block(8) for _ in range(3)))

    def forward(self, x):
        return F.interpolate(self.head(F.avg_pool2d(self.blocks(self.stem(x)), 2)), scale_factor=4)


def images(seed, device):
    return torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(seed)).to(device)


def loss_of(model, seed, device, **shape):
    ids = words(seed, device, **shape)
    return F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


# --- Loops as people write them: (model, optimizer, number of the step, device) -> what is compared ---


def plain(model, optimizer, step, device):
    optimizer.zero_grad()
    loss = loss_of(model, step, device)
    loss.backward()
    optimizer.step()
    return [loss]


def accumulating(model, optimizer, step, device):
    optimizer.zero_grad()
    losses = []
    for i in range(3):
        loss = loss_of(model, 10 * step + i, device) / 3
        loss.backward()
        losses.append(loss)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return [*losses, norm]


def four_in_flight(model, optimizer, step, device):
    optimizer.zero_grad()
    losses = [loss_of(model, 10 * step + i, device) for i in range(4)]
    for loss in losses:
        loss.backward()
    optimizer.step()
    return losses


def one_forward_one_backward(model, optimizer, step, device):
    """A pipeline's order: two forwards ahead."""
    optimizer.zero_grad()
    waiting, losses = [], []
    for i in range(5):
        waiting.append(loss_of(model, 10 * step + i, device))
        if len(waiting) == 3:
            losses.append(waiting.pop(0))
            losses[-1].backward()
    for loss in waiting:
        loss.backward()
    optimizer.step()
    return losses + waiting


def evaluating(model, optimizer, step, device):
    seen = plain(model, optimizer, step, device)
    if step % 3 == 0:
        model.eval()
        with torch.no_grad():
            seen.append(model(words(1000 + step, device)))
        model.train()
    return seen


def other_shapes(model, optimizer, step, device):
    optimizer.zero_grad()
    loss = loss_of(model, step, device, batch=2 + step % 3)
    loss.backward()
    optimizer.step()
    return [loss]


def autocast(model, optimizer, step, device):
    optimizer.zero_grad()
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        loss = loss_of(model, step, device)
    loss.backward()
    optimizer.step()
    return [loss]


def keeping_hidden_states(model, optimizer, step, device):
    kept = model.__dict__.setdefault("kept", [])
    if step == 0:
        for block in model.h:
            block.register_forward_hook(lambda module, inputs, output: kept.append(output))
    optimizer.zero_grad()
    loss = loss_of(model, step, device) + sum(state.square().mean() for state in kept[-3:])
    loss.backward()
    optimizer.step()
    kept[:] = [state.detach() for state in kept[-12:]]
    return [loss, *kept]


def replays_of(graphed):
    return {layer.name: sum(one.replays for one in layer.info.signatures) for layer in graphed.info().layers}


def train(make, loop, device, steps, graph=None):
    torch.manual_seed(0)
    model = make().to(device)
    graphed = graph(model) if graph is not None else None
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1)
    seen = [[one.detach().clone() for one in loop(model, optimizer, step, device)] for step in range(steps)]
    return model, graphed, seen


def assert_equal(make, loop, device, steps=50, graph=pianola.graph_layers, replays=None):
    """Bit for bit, what the loop sees and what it leaves."""
    eager, _, wanted = train(make, loop, device, steps)
    model, graphed, seen = train(make, loop, device, steps, graph)
    for step, (ours, theirs) in enumerate(zip(seen, wanted)):
        for one, other in zip(ours, theirs, strict=True):
            assert_same(f"step {step}", one, other)
    assert_same_state(model, eager)
    few = {name: count for name, count in replays_of(graphed).items() if count < (steps - 4 if replays is None else replays)}
    assert not few, graphed.info()
    return model, graphed


@pytest.mark.parametrize(
    "loop",
    [plain, accumulating, four_in_flight, one_forward_one_backward, evaluating, autocast, keeping_hidden_states],
    ids=lambda loop: loop.__name__,
)
def test_a_language_model_in_an_unchanged_loop(loop, device):
    _, graphed = assert_equal(Gpt, loop, device)
    assert graphed.names == ("h.0", "h.1", "h.2")


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

    def loop(model, optimizer, step, device):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8, generator=torch.Generator().manual_seed(step)).to(device))
        loss.backward()
        optimizer.step()
        return [loss]

    assert_equal(Model, loop, device, steps=20)


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

    def loop(model, optimizer, step, device):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8, generator=torch.Generator().manual_seed(step)).to(device))
        loss.backward()
        optimizer.step()
        return [loss]

    assert_equal(Model, loop, device, steps=20)


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

    def loop(model, optimizer, step, device):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8, generator=torch.Generator().manual_seed(step)).to(device)).mean()
        loss.backward()
        optimizer.step()
        return [loss]

    with caplog.at_level(logging.WARNING, "pianola"):
        assert_equal(make, loop, device, steps=10, graph=lambda model: pianola.graph_layers(model, Halving), replays=0)
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


# --- By configuration ---


def configured(*modules, **more):
    return lambda model: pianola.apply_config(
        model, pianola.CudaGraphConfig(cuda_graph_impl="local", cuda_graph_modules=list(modules), **more)
    )


SCOPES = {
    "attn": ("attn", ["h.0.attn", "h.1.attn", "h.2.attn", "h.3.attn"]),
    "mlp": ("mlp", ["h.0.mlp", "h.2.mlp"]),
    "moe_router": ("moe_router", ["h.1.mlp.gate", "h.3.mlp.gate"]),
    "whole layers": ("", ["h.0", "h.1", "h.2", "h.3"]),
    "attn and mlp": ("attn mlp", ["h.0.attn", "h.0.mlp", "h.1.attn", "h.2.attn", "h.2.mlp", "h.3.attn"]),
}


@pytest.mark.parametrize("scope", SCOPES)
def test_each_scope_of_a_configuration_trains_as_eager(scope, device):
    modules, names = SCOPES[scope]
    graph = configured(*modules.split(), num_moe_experts=4, moe_layer_freq=[0, 1, 0, 1])
    _, graphed = assert_equal(lambda: Gpt(layers=4, moe=True), plain, device, graph=graph, replays=0)
    assert list(graphed.names) == names
    never = [name for name, count in replays_of(graphed).items() if count < 40]
    assert never == (["h.1", "h.3"] if scope == "whole layers" else []), graphed.info()


def test_a_part_that_two_layers_have_is_graphed_once(device):
    class Tied(Gpt):
        def __init__(self):
            super().__init__()
            self.h[2].mlp = self.h[0].mlp

    _, graphed = assert_equal(Tied, plain, device, steps=20, graph=configured("mlp"))
    assert graphed.names == ("h.0.mlp", "h.1.mlp")


def test_an_option_that_is_refused_leaves_all_layers_as_they_are(cpu):
    model = Gpt()
    with pytest.raises(pianola.UsageError, match="warmup must be 1 or more"):
        pianola.graph_layers(model, warmup=0)
    assert all("forward" not in block.__dict__ for block in model.h)


def test_a_configuration_of_none_leaves_the_model_alone(cpu):
    model = Gpt()
    graphed = pianola.apply_config(model, pianola.CudaGraphConfig())
    assert len(graphed) == 0 and all("forward" not in module.__dict__ for module in model.modules())


def test_the_keys_of_a_configuration_act(cpu):
    config = pianola.CudaGraphConfig(
        cuda_graph_impl="transformer_engine", cuda_graph_warmup_steps=5, cuda_graph_retain_backward_graph=True
    )
    _, graphed = assert_equal(Gpt, plain, "cpu", steps=12, graph=lambda model: pianola.apply_config(model, config), replays=7)
    assert graphed["h.0"].info().signatures[0].eager_calls == 5
    model = Gpt()
    pianola.apply_config(model, config)
    for step in range(8):
        loss = loss_of(model, step, "cpu")
        loss.backward(retain_graph=True)
        loss.backward()


def test_a_configuration_file_is_read(tmp_path, cpu):
    file = tmp_path / "config.json"
    file.write_text('{"enable_cuda_graph": true, "cuda_graph_scope": ["attn"], "cuda_graph_num_warmup_steps": 2}')
    graphed = pianola.apply_config(Gpt(), file)
    assert graphed.names == ("h.0.attn", "h.1.attn", "h.2.attn")


def test_parts_may_be_named_by_the_user(cpu):
    config = pianola.CudaGraphConfig(cuda_graph_impl="local", cuda_graph_modules=["attn", "mamba"])
    graphed = pianola.apply_config(Gpt(), config, parts={"mamba": "h.*.norm1"})
    assert graphed.names == tuple(f"h.{i}.{part}" for i in range(3) for part in ("norm1", "attn"))


def test_a_part_of_a_name_that_is_no_scope_is_refused(cpu):
    config = pianola.CudaGraphConfig(cuda_graph_impl="local", cuda_graph_modules=["attn"])
    with pytest.raises(pianola.ConfigError, match="parts names 'atn', which is no scope; 'attn' is near"):
        pianola.apply_config(Gpt(), config, parts={"atn": "h.*.attn"})


@pytest.mark.parametrize(
    "config, message",
    [
        (dict(cuda_graph_impl="local", cuda_graph_modules=["mamba"]), "the scope mamba names no part of Gpt: none of its 3 layers"),
        (dict(cuda_graph_impl="full_iteration"), "cuda_graph_impl is full_iteration, which graphs a step and not a model"),
        (dict(cuda_graph_impl="local", cuda_graph_modules=["moe"]), "CF404"),
        (
            dict(cuda_graph_impl="local", cuda_graph_modules=["moe_router"], num_moe_experts=4),
            "the scope moe_router names no part of Gpt",
        ),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(config, message, cpu):
    model = Gpt()
    with pytest.raises(pianola.ConfigError, match=message):
        pianola.apply_config(model, pianola.CudaGraphConfig(**config))
    assert all("forward" not in module.__dict__ for module in model.modules())
