"""Reinforcement learning whose training and generation share one GPU: while one of them works, the memory of the other's graphs is
given back to the driver. The policy learns to write one letter as often as it can. Every round is compared with eager training.
"""

import copy

import pianola
import torch
from torch import nn
from torch.nn import functional as F

LETTERS, WIDTH, BATCH, LENGTH, ROUNDS, WANTED = 32, 256, 64, 16, 12, 7


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.cell, self.head = nn.Embedding(LETTERS, WIDTH), nn.GRUCell(WIDTH, WIDTH), nn.Linear(WIDTH, LETTERS)

    def forward(self, letter, hidden):
        hidden = self.cell(self.embed(letter), hidden)
        return self.head(hidden), hidden


def make_generate(policy):
    @torch.no_grad()
    def generate(noise):
        """Letters [batch, length], drawn by the noise [length, batch, letters] (Gumbel's, so that argmax draws by softmax)."""
        letter = noise.new_zeros(noise.shape[1], dtype=torch.long)
        hidden = noise.new_zeros(noise.shape[1], WIDTH)
        text = []
        for step in noise:
            logits, hidden = policy(letter, hidden)
            letter = (logits + step).argmax(-1)
            text.append(letter)
        return torch.stack(text, 1)

    return generate


def make_train(policy, optimizer):
    def train(text):
        """REINFORCE: a text is as good as it has wanted letters, beside the batch's mean."""
        good = (text == WANTED).float().sum(1)
        advantage = good - good.mean()
        letter, hidden = torch.zeros_like(text[:, 0]), torch.zeros(len(text), WIDTH, device=text.device)
        loss = 0
        for wanted in text.unbind(1):
            logits, hidden = policy(letter, hidden)
            loss = loss + (F.cross_entropy(logits, wanted, reduction="none") * advantage).mean()
            letter = wanted
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss, good.mean()

    return train


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    policy = Policy().to(device)
    twin = copy.deepcopy(policy)
    for_training, for_generation = (pianola.GraphPool(device, can_sleep=True) for _ in range(2))
    train = pianola.FullIteration(make_train(policy, torch.optim.Adam(policy.parameters(), lr=3e-3)), pool=for_training)
    generate = pianola.graphed(make_generate(policy), pool=for_generation)
    eager_generate, eager_train = make_generate(twin), make_train(twin, torch.optim.Adam(twin.parameters(), lr=3e-3))

    draws = torch.Generator().manual_seed(1)
    given_back, equal = [0, 0], 0
    for _ in range(ROUNDS):
        uniform = torch.rand(LENGTH, BATCH, LETTERS, generator=draws).clamp_min(1e-9)
        noise = -(-uniform.log()).log().to(device)
        with for_training.suspended() as bytes_of_training:
            text = generate(noise)
        with for_generation.suspended() as bytes_of_generation:
            loss, good = train(text)
            loss, good = loss.clone(), good.clone()
        given_back = [max(given_back[0], bytes_of_training), max(given_back[1], bytes_of_generation)]
        eager_text = eager_generate(noise)
        eager_loss, _ = eager_train(eager_text)
        equal += torch.equal(text, eager_text) and torch.equal(loss, eager_loss)

    print(f"{device.type}: at the end {good:.1f} of {LENGTH} letters are the wanted one")
    print(f"given back while the other worked: {given_back[0] / 2**20:.1f} MiB of training, {given_back[1] / 2**20:.1f} MiB of generation")
    replays = sum(one.replays for one in train.info().signatures), sum(one.replays for one in generate.info().signatures)
    print(f"{replays[0]} of {ROUNDS} steps replayed, and {replays[1]} of {ROUNDS} generations")
    same = all(torch.equal(one, other) for one, other in zip(policy.parameters(), twin.parameters()))
    print(f"{equal} of {ROUNDS} rounds and the weights are {'those of eager, bit for bit' if same else 'NOT those of eager'}")


if __name__ == "__main__":
    main()
