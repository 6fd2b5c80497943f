"""The models of bench/models in Python: the same operations on the same numbers, in the words of torch.nn."""

import math

import torch
from torch import nn
from torch.nn import functional


class InitialValues:
    """Normal numbers, always the same ones: those of bench/models/layers.hpp."""

    def __init__(self, device):
        self.generator = torch.Generator().manual_seed(1)
        self.device = device

    def normal(self, sizes, scale=1.0):
        return torch.randn(sizes, generator=self.generator).mul_(scale).to(self.device)

    def linear(self, inputs, outputs):
        layer = nn.Linear(inputs, outputs, device=self.device)
        layer.weight = nn.Parameter(self.normal((outputs, inputs), math.sqrt(2 / inputs)))
        layer.bias = nn.Parameter(self.normal((outputs,), 0.1))
        return layer


class Activated(nn.Module):
    def __init__(self, values, width, activation):
        super().__init__()
        self.linear = values.linear(width, width)
        self.activation = activation

    def forward(self, x):
        x = self.linear(x)
        return functional.relu(x) if self.activation else x


class Block(nn.Module):
    def __init__(self, values, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, device=values.device)
        self.qkv = values.linear(width, 3 * width)
        self.projection = values.linear(width, width)
        self.norm2 = nn.LayerNorm(width, device=values.device)
        self.up = values.linear(width, 4 * width)
        self.down = values.linear(4 * width, width)

    def attention(self, x):
        batch, length, width = x.shape
        shape = (batch, length, 3, self.heads, width // self.heads)
        q, k, v = self.qkv(x).view(shape).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        return self.projection(mixed.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class ParameterSum(nn.Module):
    """input * (weighted sum of all parameters): with few kernels, however many parameters of 64 numbers there are.

    Without the weights all gradients would be one row, expanded, and torch's eager mode would let them share its memory.
    """

    def __init__(self, values, count):
        super().__init__()
        self.values = nn.ParameterList([nn.Parameter(values.normal((64,))) for _ in range(count)])
        self.register_buffer("weights", values.normal((count, 64)))

    def forward(self, x):
        return x * (torch.stack(list(self.values)) * self.weights).sum(0)


def linear_chain(device, layers=16, width=64):
    values = InitialValues(device)
    return nn.Sequential(*[Activated(values, width, activation=i < layers - 1) for i in range(layers)])


def transformer(device, layers=8, width=256, heads=4):
    values = InitialValues(device)
    return nn.Sequential(*[Block(values, width, heads) for _ in range(layers)])


def parameter_sum(device, parameters):
    return ParameterSum(InitialValues(device), parameters)


def fixed_batch(device, *sizes):
    return InitialValues(device).normal(sizes)


class PositionAttention(nn.Module):
    """For one token: keys and values of those before are in a cache, which each call writes at one position."""

    def __init__(self, heads, dim, length):
        super().__init__()
        self.heads, self.width = heads, dim // heads
        self.ln, self.c_attn, self.c_proj = nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.register_buffer("k", torch.zeros(1, heads, length, self.width))
        self.register_buffer("v", torch.zeros(1, heads, length, self.width))

    def forward(self, x, position, mask):
        q, k, v = self.c_attn(self.ln(x)).view(1, 1, 3, self.heads, self.width).permute(2, 0, 3, 1, 4).unbind(0)
        self.k[:, :, position:position + 1] = k
        self.v[:, :, position:position + 1] = v
        y = functional.scaled_dot_product_attention(q, self.k, self.v, attn_mask=mask)
        return x + self.c_proj(y.transpose(1, 2).reshape(1, 1, -1))


class PositionGPT2(nn.Module):
    """GPT-2 written out for decoding: an int says where the token stands."""

    def __init__(self, vocabulary=50_257, layers=12, heads=12, dim=768, length=1024):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, dim), nn.Embedding(length, dim)
        self.attention = nn.ModuleList([PositionAttention(heads, dim, length) for _ in range(layers)])
        self.mlp = nn.ModuleList([nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(approximate="tanh"),
                                                nn.Linear(4 * dim, dim)) for _ in range(layers)])
        self.ln_f = nn.LayerNorm(dim)
        self.register_buffer("mask", torch.full((1, 1, 1, length), float("-inf")))

    def forward(self, token, position):
        self.mask[..., position] = 0
        x = self.wte(token) + self.wpe.weight[position]
        for attention, mlp in zip(self.attention, self.mlp):
            x = attention(x, position, self.mask)
            x = x + mlp(x)
        return self.ln_f(x) @ self.wte.weight.T
