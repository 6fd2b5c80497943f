"""Training steps that are profiled, and the program that trains with one of them:

    profiled_training.py WORKLOAD [--quick]

A worker of bench/python/worker_process.py: trains for one sample at each line that it reads, and answers with its time.
bench/python/python_profile.py runs it, plain and recorded.
"""

import argparse
import copy
import dataclasses
import json
import math
import sys
from pathlib import Path

import torch
from torch.nn import functional
from measuring import measure
from training import EAGER, Training, Workload, adam, mlp, transformer


@dataclasses.dataclass
class Profiled:
    """A workload, how many steps of it make a sample, and what recording them may cost; None: nothing is asked.

    `pairs`: of a process with the recorder and one without; all take turns. No two processes run alike, and the pace of steps
    that are bound by the host drifts by a tenth within seconds.
    """

    workload: Workload
    steps: int
    overhead: float | None = None
    pairs: int = 1


def resnet(settings):
    import timm

    size, batch = (32, 2) if settings.quick else (224, 32)
    torch.manual_seed(1)
    made = timm.create_model("resnet18", num_classes=10).train().to(settings.device)
    images = torch.randn(batch, 3, size, size).to(settings.device)
    labels = torch.randint(10, (batch,)).to(settings.device)
    return Workload(f"ResNet-18, batch {batch} x 3 x {size} x {size}, SGD with momentum", lambda: copy.deepcopy(made),
                    lambda parameters: torch.optim.SGD(parameters, lr=1e-4, momentum=0.9), (images, labels),
                    criterion=functional.cross_entropy)


class LanguageModel(torch.nn.Module):
    """GPT-2 with its loss; torch's attention sees to causality, so that there is no mask to look at on the host."""

    def __init__(self, width, layers, heads, length, words):
        super().__init__()
        self.words = torch.nn.Embedding(words, width)
        self.places = torch.nn.Parameter(torch.randn(length, width) / math.sqrt(width))
        self.blocks = torch.nn.ModuleList(GptBlock(width, heads) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(width)
        self.head = torch.nn.Linear(width, words, bias=False)

    def forward(self, words):
        x = self.words(words) + self.places
        for block in self.blocks:
            x = block(x)
        scores = self.head(self.norm(x))[:, :-1]
        return functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), words[:, 1:].reshape(-1))


class GptBlock(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.projection = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def attention(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.projection(mixed.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


def gpt2(settings):
    width, layers, heads, batch, length, words = (32, 2, 2, 2, 8, 100) if settings.quick else (768, 12, 12, 16, 1024, 50257)
    torch.manual_seed(1)
    made = LanguageModel(width, layers, heads, length, words).to(settings.device)
    batched = torch.randint(words, (batch, length)).to(settings.device)
    return Workload(f"GPT-2 small, {layers} x {width}, batch {batch} x {length}, Adam", lambda: copy.deepcopy(made),
                    adam(settings.device), (batched,), criterion=lambda loss: loss)


# Bars of the recorder: of a step that is bound by launches, and of one that is bound by the GPU.
WORKLOADS = {
    "mlp": lambda settings: Profiled(mlp(settings.device, settings.some(16)), settings.some(100), overhead=1.15, pairs=7),
    "transformer": lambda settings: Profiled(transformer(settings.device, settings.some(8)), settings.some(50)),
    "resnet18": lambda settings: Profiled(resnet(settings), settings.some(50)),
    "gpt2": lambda settings: Profiled(gpt2(settings), settings.some(5), overhead=1.02, pairs=2),
}
PACKAGES = {"resnet18": "timm"}  # which a workload needs


@dataclasses.dataclass
class Settings:
    device: str
    quick: bool

    def some(self, iterations):
        return min(iterations, 3) if self.quick else iterations


def main(arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    torch.backends.cuda.matmul.allow_tf32 = True
    profiled = WORKLOADS[options.workload](Settings(options.device, options.quick))
    step = Training(profiled.workload, EAGER).graph().step
    for _ in sys.stdin:
        print(json.dumps(measure(step, profiled.steps, profiled.steps)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
