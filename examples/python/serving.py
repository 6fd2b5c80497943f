"""A model that answers requests of several sizes: each size is captured when it has come often enough."""

import copy
import os
import random
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs to give the same bits twice

import torch
from torch import nn

import pianola

device = pianola.default_device()


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.EmbeddingBag(1000, 64)
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(6)))
        self.head = nn.Linear(64, 5)

    def forward(self, words):
        scores = self.head(self.layers(self.embed(words)))
        return {"scores": scores, "best": scores.argmax(1)}


def main():
    torch.manual_seed(0)
    random.seed(0)
    model = Classifier().to(device).eval()
    plain = copy.deepcopy(model)
    model = pianola.graphed(model, capacity=4)  # graphs for the four sizes that came last
    same = True
    with torch.inference_mode():
        for _ in range(60):
            size = random.choice([1, 1, 1, 4, 4, 16, 64])
            words = torch.randint(1000, (size, 12), device=device)
            answer = model(words)
            expected = plain(words)
            same = same and all(torch.equal(answer[name], expected[name]) for name in expected)
    print(f"{model.forward.info()}\n")
    print("answers are", "those of eager, bit for bit" if same else "NOT those of eager")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
