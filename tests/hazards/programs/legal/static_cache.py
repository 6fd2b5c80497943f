"""A decoder with a KV cache of fixed size and a position on the device, over two layers."""
import torch
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    def __init__(self, length):
        super().__init__()
        self.qkv = nn.Linear(4, 12)
        self.register_buffer("cache", torch.zeros(2, 1, length, 4))

    def forward(self, x, position, seen):
        q, k, v = self.qkv(x).chunk(3, -1)
        self.cache[0].index_copy_(1, position, k)
        self.cache[1].index_copy_(1, position, v)
        return x + F.scaled_dot_product_attention(q, self.cache[0], self.cache[1], attn_mask=seen)


class Decoder(nn.Module):
    def __init__(self, length=8):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.layers = nn.ModuleList(Layer(length) for _ in range(2))
        self.register_buffer("position", torch.zeros(1, dtype=torch.long))
        self.register_buffer("places", torch.arange(length))
        self.register_buffer("token", torch.ones(1, 1, dtype=torch.long))

    def forward(self):
        x, seen = self.embed(self.token), self.places <= self.position
        for layer in self.layers:
            x = layer(x, self.position, seen)
        self.token.copy_((x @ self.embed.weight.T).argmax(-1))
        self.position.add_(1)


def program(device):
    decoder = Decoder().to(device).requires_grad_(False)
    return decoder
