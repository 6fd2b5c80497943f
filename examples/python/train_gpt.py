"""A character GPT learns the lines of a file. Lines are of any length and padded to three, each iteration is one graph, and the
losses are those of eager.

    train_gpt.py [FILE]
"""

import random
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import pianola

STEPS, MICROBATCHES, LINES, WIDTH, LONGEST = 60, 2, 8, 32, 96


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x):
        rows, length, _ = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(rows, length, 3, 4, WIDTH // 4).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, WIDTH))
        return x + self.mlp(self.norms[1](x))


class CharGpt(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.blocks = nn.Sequential(Block(), Block(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, vocabulary))

    def forward(self, tokens):
        return self.blocks(self.tokens(tokens) + self.places.weight[: tokens.shape[1]])


def read_lines(file):
    """The lines of a file as numbers, and how many different ones there are."""
    text = Path(file).read_text(errors="replace")
    numbers = {symbol: i for i, symbol in enumerate(sorted(set(text)))}
    lines = [[numbers[symbol] for symbol in line[: LONGEST + 1]] for line in text.splitlines() if len(line) >= 8]
    return sorted(lines, key=len), len(numbers)


def batches(lines):
    """Lines of about one length, which another batch need not have: a microbatch is as long as its longest."""
    chooser = random.Random(1)
    for _ in range(STEPS):
        batch, first = [], chooser.randrange(len(lines) - MICROBATCHES * LINES)
        for i in range(MICROBATCHES):
            chosen = [torch.tensor(line) for line in lines[first + i * LINES :][:LINES]]
            batch.append({
                "tokens": nn.utils.rnn.pad_sequence([line[:-1] for line in chosen], batch_first=True),
                "targets": nn.utils.rnn.pad_sequence([line[1:] for line in chosen], batch_first=True, padding_value=-100),
            })  # fmt: skip
        yield batch


class Training:
    """What one training run has, and one iteration of it. Eager and graphed run the same code."""

    def __init__(self, vocabulary, device):
        torch.manual_seed(1)
        self.model = CharGpt(vocabulary).to(device)
        self.optimizer = pianola.optim.AdamW(self.model.parameters(), lr=4e-3)
        rate = pianola.optim.LearningRate.warmup(5, pianola.optim.LearningRate.cosine(STEPS - 5))
        self.schedule = pianola.optim.LearningRateSchedule(self.optimizer, rate, [4e-3])
        self.watch = pianola.FiniteWatch(device)
        self.inputs = pianola.StaticInputs(device, buckets=pianola.Buckets([32, 64, 96], pad={"tokens": 0, "targets": -100}))

    def step(self, microbatches):
        self.optimizer.zero_grad()
        total = 0
        for batch in microbatches:
            logits = self.model(batch["tokens"])
            loss = F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten()) / MICROBATCHES
            loss.backward()
            total = total + loss.detach()
        pianola.clip_grad_norm_(self.model.parameters(), 1.0)
        self.watch.check("loss", total)
        self.optimizer.step(found_inf=self.watch.found_inf())  # a bad step leaves the parameters as they were
        self.watch.end_step()
        return total

    def run(self, lines, iterate):
        """The loss of each iteration; `iterate` makes one, of the batch that is in the static inputs."""
        losses = []
        for batch in batches(lines):
            self.inputs.load(batch)  # travels while the device still works on the iteration before
            losses.append(iterate().clone())
            self.schedule.step()
            self.watch.poll()
        self.watch.wait()
        return torch.stack(losses)


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.use_deterministic_algorithms(True, warn_only=True)
    lines, vocabulary = read_lines(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2] / "README.md")

    eager = Training(vocabulary, device)
    expected = eager.run(lines, lambda: eager.step(eager.inputs.microbatches()))

    graphed = Training(vocabulary, device)
    iteration = pianola.FullIteration(graphed.step)
    losses = graphed.run(lines, lambda: iteration(graphed.inputs))

    equal = int((losses == expected).sum())
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; {equal} of {STEPS} losses equal eager's, bit for bit")
    print(iteration.info(), graphed.inputs.report(), sep="\n")
    return 0 if equal == STEPS and losses[-1] < losses[0] else 1


if __name__ == "__main__":
    sys.exit(main())
