"""Handwritten digits, learned three times: eagerly, with one decorator, and by replaying one graph.

Same seed, same order of batches, and at the end the same weights, bit for bit. Needs scikit-learn for its digits.
"""

import os
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs to give the same bits twice

import torch
from torch import nn

import pianola

EPOCHS, BATCH, WARMUP = 20, 64, 3
device = pianola.default_device()


def load_digits():
    """Images and labels to learn from, and others to be asked for."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        print("skipped: the digits come with scikit-learn: pip install scikit-learn")
        sys.exit(77)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32, device=device).unsqueeze(1) / 16
    labels = torch.tensor(digits.target, device=device)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)).to(device)
    learn, ask = order[:1408], order[1408:]
    return (images[learn], labels[learn]), (images[ask], labels[ask])


def batches(images, labels):
    """The same batches for everybody."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(labels), generator=generator).to(device).split(BATCH):
            yield images[chosen], labels[chosen]


class Training:
    """A network, its optimizer and one step."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
            nn.Flatten(), nn.Dropout(0.2), nn.Linear(64 * 4 * 4, 10),
        ).to(device)  # fmt: skip
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)

    def step(self, x, y):
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss

    @torch.no_grad()
    def accuracy(self, images, labels):
        self.model.eval()
        return (self.model(images).argmax(1) == labels).float().mean().item()


def train_eagerly(training, data):
    for x, y in data:
        training.step(x, y)


def train_with_a_decorator(training, data):
    step = pianola.graphed(training.step)  # or @pianola.graphed above `def step`
    for x, y in data:
        step(x, y)


def train_with_one_graph(training, data):
    data = iter(data)
    static_x, static_y = map(torch.clone, next(data))

    def fill(batch):
        static_x.copy_(batch[0])
        static_y.copy_(batch[1])

    side = pianola.Stream()
    side.wait_stream(pianola.current_stream())
    with pianola.stream(side):
        training.step(static_x, static_y)
        for _ in range(WARMUP - 1):
            fill(next(data))
            training.step(static_x, static_y)
    pianola.current_stream().wait_stream(side)

    g = pianola.CUDAGraph()
    with pianola.graph(g):
        training.step(static_x, static_y)
    for batch in data:
        fill(batch)
        g.replay()


def timed(data, clock):
    """The batches, with the time at which each was asked for."""
    for batch in data:
        clock.append(time.perf_counter())
        yield batch


def main():
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.set_num_threads(1)
    to_learn, to_ask = load_digits()
    data = list(batches(*to_learn))
    print(f"{len(data)} steps of {BATCH} digits on {device}\n")
    print("way               accuracy  us per step")
    results = []
    for name, train in (("eager", train_eagerly), ("@pianola.graphed", train_with_a_decorator),
                        ("pianola.graph", train_with_one_graph)):  # fmt: skip
        training, clock = Training(), []
        train(training, timed(data, clock))
        if device.type == "cuda":
            torch.cuda.synchronize()
        settled = len(data) // 4  # by then everything is warm and captured
        us = (time.perf_counter() - clock[settled]) / (len(data) - settled) * 1e6
        state = [tensor.clone() for tensor in training.model.state_dict().values()]
        results.append((training.accuracy(*to_ask), state))
        print(f"{name:16}  {results[-1][0]:8.2%}  {us:11.0f}")

    (accuracy, weights), *others = results
    same = all(other == accuracy and all(map(torch.equal, weights, theirs)) for other, theirs in others)
    print("\nall weights and statistics are", "the same, bit for bit" if same else "NOT the same")
    return 0 if same and accuracy > 0.9 else 1


if __name__ == "__main__":
    sys.exit(main())
