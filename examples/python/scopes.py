"""Graphs of parts of a model, as the configurations of Megatron-LM name them: attention, MLPs, routers, whole layers. Every second layer
has experts whose tokens the host counts, so that no graph can hold those layers as a whole. The training loop knows nothing of it,
and the losses and weights are those of eager, bit for bit. (`pianola train` does the same in C++.)

    python examples/python/scopes.py
"""

import time

import torch
import torch.nn.functional as F
from torch import nn

import pianola

STEPS, WIDTH, WORDS = 40, 64, 100
SCOPES = ([], ["attn"], ["mlp"], ["moe_router"], ["attn", "mlp", "moe_router"])


class Attention(nn.Module):
    def __init__(self, heads=4):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        future = torch.full((length, length), float("-inf"), device=x.device).triu(1)
        weights = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + future).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, WIDTH))


class Mlp(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))


class Moe(nn.Module):
    def __init__(self, experts=4):
        super().__init__()
        self.router = nn.Linear(WIDTH, experts, bias=False)
        self.experts = nn.ModuleList(Mlp() for _ in range(experts))

    def forward(self, x):
        tokens = x.flatten(0, -2)
        weights, chosen = self.router(tokens).softmax(-1).topk(2)
        result = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            token, place = (chosen == number).nonzero(as_tuple=True)  # the host waits for the count
            result = result.index_add(0, token, expert(tokens[token]) * weights[token, place, None])
        return result.view_as(x)


class Layer(nn.Module):
    def __init__(self, has_experts):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.self_attention, self.mlp = Attention(), Moe() if has_experts else Mlp()

    def forward(self, x):
        x = x + self.self_attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self, layers=4):
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.layers = nn.ModuleList(Layer(has_experts=i % 2 == 1) for i in range(layers))

    def forward(self, words):
        x = self.embedding(words)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def train(device, scope=None):
    """The losses, the weights, milliseconds per step, and what was graphed."""
    torch.manual_seed(0)
    model = Model().to(device)
    graphed = None
    if scope is not None:
        config = pianola.CudaGraphConfig(
            cuda_graph_impl="local", cuda_graph_modules=scope, num_moe_experts=4, moe_layer_freq=[0, 1, 0, 1]
        )
        graphed = pianola.apply_config(model, config, on_fallback=lambda reason: None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    chooser = torch.Generator().manual_seed(1)
    losses = []
    for step in range(STEPS):
        if step == STEPS // 2:
            losses[-1].item()  # waits
            begin = time.perf_counter()
        words = torch.randint(WORDS, (8, 24), generator=chooser).to(device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(words)[:, :-1].flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    losses = torch.stack(losses).cpu()
    return losses, list(model.parameters()), 1000 * (time.perf_counter() - begin) / (STEPS - STEPS // 2), graphed


def main():
    device = pianola.default_device()
    torch.use_deterministic_algorithms(True)
    expected, weights, eager_ms, _ = train(device)
    print(f"{device.type}: {STEPS} steps, loss {expected[0]:.3f} to {expected[-1]:.3f}, eager {eager_ms:.2f} ms per step")
    same = True
    for scope in SCOPES:
        losses, found, ms, graphed = train(device, scope)
        infos = [layer.info for layer in graphed.info().layers]
        captured = sum(any(one.replays for one in info.signatures) for info in infos)
        is_same = torch.equal(losses, expected) and all(map(torch.equal, found, weights))
        same = same and is_same
        print(f"  {', '.join(scope) or 'whole layers':24} {captured} of {len(infos)} are graphs, {ms:6.2f} ms per step")
    print(f"losses and weights are {'' if same else 'NOT '}those of eager, bit for bit")


if __name__ == "__main__":
    import os

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs to give the same bits twice
    main()
