"""A transducer for speech (RNN-T): the encoder's layers are graphs, in training and in recognition. The loss, a recursion over frames
and letters, and the decoding loop, which asks after each letter what comes next, stay eager. Losses, weights and texts are those of
eager, bit for bit.

    python examples/python/speech.py
"""

import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs to give the same bits twice

import torch
from torch import nn

import pianola

STEPS, WIDTH, LETTERS, BLANK = 200, 48, 6, 0


class EncoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix = nn.Conv1d(WIDTH, WIDTH, 5, padding=2, groups=4)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.SiLU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.mix(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.mlp(self.norm2(x))


class Transducer(nn.Module):
    def __init__(self, bands=8, layers=4):
        super().__init__()
        self.bands = nn.Linear(bands, WIDTH)
        self.encoder = nn.Sequential(*(EncoderLayer() for _ in range(layers)))
        self.embedding, self.predictor = nn.Embedding(LETTERS, WIDTH), nn.GRUCell(WIDTH, WIDTH)
        self.joint = nn.Linear(WIDTH, LETTERS)

    def encode(self, sound):
        return self.encoder(self.bands(sound))

    def predict(self, letters):
        """States before each letter of the texts, and after the last one."""
        state = self.embedding.weight.new_zeros(letters.shape[0], WIDTH)
        states = [state]
        for letter in letters.unbind(1):
            state = self.predictor(self.embedding(letter), state)
            states.append(state)
        return torch.stack(states, 1)

    def loss(self, sound, letters):
        """Minus the log of the probability of the letters, over all ways to place them in the frames."""
        scores = self.joint((self.encode(sound)[:, :, None] + self.predict(letters)[:, None]).tanh()).log_softmax(-1)
        scores, letters = scores.cpu(), letters.cpu()  # many tiny steps follow
        stay = scores[..., BLANK]
        move = scores[:, :, :-1].gather(-1, letters[:, None, :, None].expand(-1, sound.shape[1], -1, 1))[..., 0]
        reached = torch.cat([stay.new_zeros(sound.shape[0], 1), move[:, 0].cumsum(1)], 1)
        for frame in range(1, sound.shape[1]):
            waited, row = reached + stay[:, frame - 1], []
            for place in range(waited.shape[1]):
                came = waited[:, place]
                row.append(came if place == 0 else torch.logaddexp(came, row[-1] + move[:, frame, place - 1]))
            reached = torch.stack(row, 1)
        return -(reached[:, -1] + stay[:, -1, -1]).mean()

    @torch.no_grad()
    def recognise(self, sound):
        """The letters of one sound, the best next one each time."""
        text, state = [], self.embedding.weight.new_zeros(1, WIDTH)
        for frame in self.encode(sound[None])[0]:
            for _ in range(3):  # letters of a frame
                letter = self.joint((frame + state).tanh()).argmax().item()  # the host has to know
                if letter == BLANK:
                    break
                text.append(letter)
                state = self.predictor(self.embedding.weight[letter][None], state)
        return text


def speak(letters, voice, noise):
    """Each letter is two frames of its own bands and one of silence, with noise."""
    sound = torch.stack([voice[letters], voice[letters], torch.zeros(*letters.shape, 8)], 2).flatten(1, 2)
    return sound + 0.1 * torch.randn(sound.shape, generator=noise)


def train(device, graphed):
    torch.manual_seed(0)
    model = Transducer().to(device)
    layers = pianola.graph_layers(model.encoder) if graphed else None
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    chooser = torch.Generator().manual_seed(1)
    voice = torch.randn(LETTERS, 8, generator=chooser)
    losses = []
    for _ in range(STEPS):
        letters = torch.randint(1, LETTERS, (8, 4), generator=chooser)
        optimizer.zero_grad()
        loss = model.loss(speak(letters, voice, chooser).to(device), letters.to(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    model.eval()
    spoken = torch.randint(1, LETTERS, (6, 4), generator=chooser)
    texts = [model.recognise(one) for one in speak(spoken, voice, chooser).to(device)]
    right = sum(text == said for text, said in zip(texts, spoken.tolist()))
    replays = sum(one.replays for layer in layers.info().layers for one in layer.info.signatures) if graphed else 0
    return torch.stack(losses).cpu(), list(model.parameters()), texts, right, replays


def main():
    device = pianola.default_device()
    torch.use_deterministic_algorithms(True)
    expected, weights, wanted, _, _ = train(device, graphed=False)
    losses, found, texts, right, replays = train(device, graphed=True)
    print(f"{device.type}: loss {losses[0]:.2f} to {losses[-1]:.2f}, {right} of {len(texts)} texts are right, {replays} layers replayed")
    same = torch.equal(losses, expected) and all(map(torch.equal, found, weights)) and texts == wanted
    print(f"losses, weights and texts are {'' if same else 'NOT '}those of eager, bit for bit")


if __name__ == "__main__":
    main()
