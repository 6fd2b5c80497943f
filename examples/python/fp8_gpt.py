"""The character GPT of `pianola demo` learns a text, with linear layers in bfloat16 and in 8 bits: the curves of both.

    fp8_gpt.py [--steps N] [--recipe delayed|tensor|row] [FILE ...]
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import pianola

LAYERS, WIDTH, HEADS, CONTEXT, DROPOUT = 6, 192, 6, 128, 0.1


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(DROPOUT))

    def forward(self, x):
        rows, length, _ = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(rows, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.dropout(self.out(mixed.transpose(1, 2).reshape(rows, length, WIDTH)), DROPOUT, self.training)
        return x + self.mlp(self.norms[1](x))


class CharGpt(nn.Module):
    def __init__(self, vocabulary, layers):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(layers)), nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, vocabulary)

    def forward(self, tokens):
        return self.head(self.blocks(self.tokens(tokens) + self.places.weight[: tokens.shape[1]]))


class Training:
    def __init__(self, text, recipe, options):
        torch.manual_seed(1)
        self.text, self.recipe, self.steps, self.batch = text, recipe, options.steps, options.batch
        self.model = CharGpt(int(text.max()) + 1, options.layers).to(options.device)
        if recipe is not None:
            pianola.fp8.convert(self.model, pianola.fp8.Recipe(recipe), filter=lambda name, layer: name != "head")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def step(self, tokens):
        self.optimizer.zero_grad()
        with torch.autocast(tokens.device.type, torch.bfloat16), pianola.fp8.autocast(enabled=self.recipe is not None):
            logits = self.model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def run(self, call):
        """The loss of each step; all runs see the same pieces of the text, and draw the same dropout."""
        torch.manual_seed(2)
        pieces, losses = torch.Generator().manual_seed(3), []
        for _ in range(self.steps):
            starts = torch.randint(len(self.text) - CONTEXT - 1, (self.batch,), generator=pieces)
            tokens = torch.stack([self.text[start : start + CONTEXT + 1] for start in starts])
            losses.append(call(tokens.to(self.model.places.weight.device)).clone())
        return torch.stack(losses).cpu()


def read(files):
    text = "".join(Path(file).read_text(errors="replace") for file in files)
    numbers = {symbol: i for i, symbol in enumerate(sorted(set(text)))}
    return torch.tensor([numbers[symbol] for symbol in text])


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", default=[Path(__file__).parents[2] / "README.md"], metavar="FILE")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--layers", type=int, default=LAYERS if torch.cuda.is_available() else 1)
    parser.add_argument("--batch", type=int, default=32 if torch.cuda.is_available() else 8)
    parser.add_argument("--recipe", nargs="+", default=["delayed"], choices=["delayed", "tensor", "row"])
    parser.add_argument("--out", type=Path, help="JSON with all losses")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def main():
    options = parse()
    torch.use_deterministic_algorithms(True, warn_only=True)
    text = read(options.files)
    size = f"{options.layers} layers of {WIDTH}, {options.steps} steps of {options.batch} x {CONTEXT}"
    print(f"{options.device}: {len(text)} characters; {size}")
    curves, differs = {}, False
    for name in (None, *options.recipe):
        training = Training(text, name, options)
        curves[name or "bfloat16"] = training.run(pianola.graphed(training.step))
        if name is not None:
            eager = Training(text, name, options)
            eager.steps = min(options.steps, 100)
            equal = int((eager.run(eager.step) == curves[name][: eager.steps]).sum())
            differs = differs or equal < eager.steps
            print(f"{name}: {equal} of {eager.steps} losses equal eager's, bit for bit")
    window = max(1, options.steps // 20)
    print("".join(f"{word:>12}" for word in ("to step", *curves)))
    for end in range(2 * window, options.steps + 1, 2 * window):
        means = [float(curve[end - window : end].mean()) for curve in curves.values()]
        print(f"{end:>12}" + "".join(f"{mean:12.4f}" for mean in means))
    means = [float(curve[-window:].mean()) for curve in curves.values()]
    print(f"mean of the last {window}, beside bfloat16's: " + ", ".join(f"{mean / means[0]:.4f}" for mean in means[1:]))
    if options.out:
        options.out.write_text(json.dumps({name: [round(float(one), 4) for one in curve] for name, curve in curves.items()}) + "\n")
    return 1 if differs else 0


if __name__ == "__main__":
    sys.exit(main())
