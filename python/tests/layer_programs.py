"""Models and training loops as people write them, for tests of graphed layers."""

import pianola
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from twins import assert_same, assert_same_state

WORDS = 50


def words(seed, device, batch=2, length=12):
    return torch.randint(WORDS, (batch, length), generator=torch.Generator().manual_seed(seed)).to(device)


def training_step(model, optimizer):
    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


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

    def embed(self, ids):
        return self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))

    def read(self, x):
        return self.head(self.norm(x))

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.h:
            x = block(x) if self.checkpointing is None else checkpoint(block, x, use_reentrant=self.checkpointing)
        return self.read(x)


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


def next_word_loss(model, ids):
    return F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def next_word_step(model, optimizer):
    """A training step of such a model, of the ids that it is given."""

    def step(ids):
        optimizer.zero_grad()
        loss = next_word_loss(model, ids)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def loss_of(model, seed, device, **shape):
    return next_word_loss(model, words(seed, device, **shape))


# --- Loops as people write them: (model, optimizer, number of the step, device) -> what is compared ---


def plain(model, optimizer, step, device):
    optimizer.zero_grad()
    loss = loss_of(model, step, device)
    loss.backward()
    optimizer.step()
    return [loss]


def on_noise(model, optimizer, step, device):
    """The mean of what the model gives."""
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8, generator=torch.Generator().manual_seed(step)).to(device)).mean()
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


def evaluating_before_the_backward_pass(model, optimizer, step, device):
    """As reinforcement learning asks the model for values while its own losses wait."""
    optimizer.zero_grad()
    losses = [loss_of(model, 10 * step + i, device) for i in range(2)]
    model.eval()
    with torch.no_grad():
        values = [model(words(1000 + step + i, device)) for i in range(2)]
    model.train()
    for loss in losses:
        loss.backward()
    optimizer.step()
    return [*losses, *values]


def interleaved(model, optimizer, step, device, ranks=2, chunks=2, microbatches=4):
    """Interleaved 1F1B: the blocks are chunks, in turn of one rank and the other. Each rank follows its own order; what one sends to
    the other has no history, as it has none behind send and recv."""
    optimizer.zero_grad()
    schedules = [
        pianola.Schedule.interleaved(pipeline_size=ranks, virtual_size=chunks, microbatches=microbatches, rank=rank) for rank in range(ranks)
    ]
    orders = [[int(entry) for entry in str(schedule).split(",")] for schedule in schedules]
    done = [dict.fromkeys(order, 0) for order in orders]  # microbatches, by entry
    sent, gradients, passes, losses = {}, {}, {}, {}
    last = ranks * chunks - 1
    while any(orders):
        for rank, order in enumerate(orders):
            if not order:
                continue
            entry = order[0]
            stage, microbatch = (abs(entry) - 1) * ranks + rank, done[rank][entry]
            if entry > 0 and (stage == 0 or (stage, microbatch) in sent):
                ids = words(10 * step + microbatch, device)
                x = model.embed(ids) if stage == 0 else sent.pop((stage, microbatch)).requires_grad_()
                y = model.h[stage](x)
                if stage == last:
                    y = losses[microbatch] = F.cross_entropy(model.read(y)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
                else:
                    sent[stage + 1, microbatch] = y.detach().clone()
                passes[stage, microbatch] = x, y
            elif entry < 0 and (stage == last or (stage, microbatch) in gradients):
                x, y = passes.pop((stage, microbatch))
                y.backward(gradients.pop((stage, microbatch), None))
                if stage > 0:
                    gradients[stage - 1, microbatch] = x.grad
            else:
                continue
            done[rank][entry] += 1
            order.pop(0)
    optimizer.step()
    return [losses[i] for i in range(microbatches)]


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
