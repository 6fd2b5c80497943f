"""Each batch is padded to its own longest sequence."""
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence


def program(device):
    embed, rnn = nn.Embedding(10, 4).to(device), nn.GRU(4, 4, batch_first=True).to(device)
    sentences = [[torch.randint(0, 10, (n,)) for n in lengths] for lengths in ([3, 5], [4, 2], [6, 6])]
    batches = [(pad_sequence(batch, batch_first=True).to(device),) for batch in sentences]

    @torch.no_grad()
    def step(tokens):
        x = embed(tokens)  # hazard: PG502
        return rnn(x)[1]

    return step, {"batches": batches}
