"""Decoding by GPT-2, token by token, where an int says the position: one graph whose nodes follow it, against the same graph
where the position stands still."""

import itertools

import models
import pianola
import torch
from measuring import alternate, case, check_equal, require, require_within, series

EAGER, FROZEN, MOVING = "eager", "the same position", "another position"


def decoder(model):
    @torch.no_grad()
    def decode(token, position):
        return model(token, position)[:, -1].argmax(dim=-1, keepdim=True)

    return decode


def all_tokens(decode, model, device, length):
    model.mask.fill_(float("-inf"))
    token = torch.zeros(1, 1, dtype=torch.long, device=device)
    tokens = []
    for position in range(length):
        token = decode(token, position)
        tokens.append(token)
    return torch.cat(tokens, 1)


def run(settings):
    layers, length = settings.some(12), 24 if settings.quick else 2048
    sizes = dict(vocabulary=100, heads=2, dim=32) if settings.quick else dict(vocabulary=50_257, heads=12, dim=768)
    torch.manual_seed(0)
    model = models.PositionGPT2(**sizes, layers=layers, length=length).to(settings.device).eval()
    eager, graphed = decoder(model), pianola.graphed(decoder(model))
    for sequence in (1, 2):
        expected = [all_tokens(eager, model, settings.device, length), *(one.clone() for one in model.buffers())]
        actual = [all_tokens(graphed, model, settings.device, length), *model.buffers()]
        check_equal(f"sequence {sequence}", actual, expected)
    captured = [one for one in graphed.info().signatures if one.graphs]
    replays = sum(one.replays for one in captured)

    token = torch.zeros(1, 1, dtype=torch.long, device=settings.device)
    positions = itertools.cycle(range(length))
    contenders = {EAGER: lambda: eager(token, next(positions)), MOVING: lambda: graphed(token, next(positions)),
                  FROZEN: lambda: graphed(token, length // 2)}
    samples = alternate(contenders, settings.some(100), settings.some(10), settings.rounds)
    title = f"GPT-2 of {layers} layers, {length} positions, a token per call"
    changed = 2 * layers + 2  # both caches of each layer, the mask, the position's embedding
    host = case(title, "host time per call", settings.some(100), EAGER, series(samples, "host"),
                notes=[f"{replays} of {2 * length} calls were replayed, by {sum(one.graphs for one in captured)} graphs; {changed} nodes change"])
    require(host, "graphs: one for all positions", sum(one.graphs for one in captured), 1, sum(one.graphs for one in captured) == 1)
    require_within(host, MOVING, FROZEN, series(samples, "host"), 3 + 1.5 * changed)
    yield host
    yield case(title, "time per call", settings.some(100), EAGER, series(samples, "wall"))
