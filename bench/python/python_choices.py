"""Which scope try_scopes takes for eight training steps, against the fastest of all that were made and timed by hand."""

import measuring
import models
import pianola
import python_layers
import torch
from measuring import alternate, case, check_equal, series
from resnet import resnet50
from torch import nn
from torch.nn import functional

EAGER, LAYERS, MODEL, ITERATION = SCOPES = ("eager", "layers", "model", "iteration")
ITERATIONS, BURST = 20, 5
CHECKED = 48  # also where parts of a step are found first


def training(model, optimizer, loss_of, ends=lambda loss: loss.detach()):
    def step(*batch):
        optimizer.zero_grad()
        loss = loss_of(model, *batch)
        loss.backward()
        optimizer.step()
        return ends(loss)

    return step, model


def mean_square(model, x, y):
    return functional.mse_loss(model(x), y)


def adamw(model, **options):
    return torch.optim.AdamW(model.parameters(), lr=1e-4, **options)


class Recurrent(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers, self.head = nn.ModuleList(nn.GRUCell(width, width) for _ in range(2)), nn.Linear(width, width)

    def forward(self, x):
        states = [torch.zeros_like(x[0]) for _ in self.layers]
        for one in x:
            for i, cell in enumerate(self.layers):
                one = states[i] = cell(one, states[i])
        return self.head(one)


class Experts(nn.Module):
    """Each token goes to one expert, whose tokens the host counts."""

    def __init__(self, width, experts):
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
                                     for _ in range(experts))  # fmt: skip

    def forward(self, x):
        weights, chosen = self.router(x).softmax(-1).max(-1)
        result = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            (tokens,) = torch.where(chosen == i)
            result.index_add_(0, tokens, expert(x[tokens]) * weights[tokens, None])
        return x + result


class ExpertLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.dense = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
        self.experts = Experts(width, 4)

    def forward(self, x):
        return self.experts(x + self.dense(x))


def with_words(settings, batch, length, **ends):
    model = python_layers.Gpt(settings.device, settings.some(8))
    loss_of = lambda model, ids: functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())  # noqa: E731
    ids = torch.randint(python_layers.WORDS, (batch, length), device=settings.device)
    return *training(model, adamw(model), loss_of, **ends), (ids,)


def mlp(settings):
    model = models.linear_chain(settings.device, settings.some(16), 64)
    return *training(model, adamw(model), mean_square), (torch.randn(32, 64, device=settings.device),) * 2


def gpt(settings):
    return with_words(settings, 2, 64)


def gpt_read(settings):
    return with_words(settings, 2, 64, ends=lambda loss: loss.item())


def large_gpt(settings):
    return with_words(settings, settings.some(16), settings.some(512))


def transformer_sgd(settings):
    model = models.transformer(settings.device, settings.some(8), 256)
    x = torch.randn(2, 64, 256, device=settings.device)
    return *training(model, torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9), mean_square), (x, x)


def resnet(settings):
    model = resnet50(10).to(settings.device)
    batch = torch.randn(8, 3, 64, 64, device=settings.device), torch.randint(10, (8,), device=settings.device)
    loss_of = lambda model, x, y: functional.cross_entropy(model(x), y)  # noqa: E731
    return *training(model, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9), loss_of), batch


def recurrent(settings):
    model = Recurrent(128).to(settings.device)
    x = torch.randn(settings.some(32), 16, 128, device=settings.device)
    return *training(model, adamw(model), mean_square), (x, x[0])


def experts(settings):
    model = nn.Sequential(*[ExpertLayer(128) for _ in range(4)]).to(settings.device)
    x = torch.randn(256, 128, device=settings.device)
    return *training(model, adamw(model), mean_square), (x, x)


STEPS = {
    "MLP 16 x 64, AdamW": mlp,
    "GPT 8 x 256, batch 2 x 64, AdamW": gpt,
    "the same, which returns loss.item()": gpt_read,
    "GPT 8 x 256, batch 16 x 512, AdamW": large_gpt,
    "transformer 8 x 256, batch 2 x 64, SGD": transformer_sgd,
    "ResNet-50, 8 images of 64 x 64, SGD": resnet,
    "GRU of 2 layers of 128, 32 steps, AdamW": recurrent,
    "4 layers with 4 experts, whose tokens the host counts, AdamW": experts,
}


def by_hand(settings, make, scope):
    torch.manual_seed(1)
    step, model, batch = make(settings)
    if scope == LAYERS:
        pianola.graph_layers(model)
    elif scope == MODEL:
        pianola.graphed(model, max_in_flight=8)
    elif scope == ITERATION:
        step = pianola.graphed(step)
    return lambda: step(*batch), model


def choice_of(settings, name, make):
    torch.manual_seed(1)
    batch = make(settings)[2]
    tried = pianola.try_scopes(lambda: make(settings)[0], batches=[batch])
    chosen = tried.chosen.scope if tried.chosen else EAGER
    possible = [one.scope for one in tried.trials if one.scope == EAGER or one.replays]
    made = {scope: by_hand(settings, make, scope) for scope in possible}
    for _ in range(CHECKED):
        for run, _ in made.values():
            run()
    parameters = {scope: [p.detach() for p in model.parameters()] for scope, (_, model) in made.items()}
    for scope in possible:
        check_equal(f"{name}, {scope}", parameters[scope], parameters[EAGER])
    iterations = settings.some(ITERATIONS)
    samples = series(alternate({scope: run for scope, (run, _) in made.items()}, iterations, BURST, settings.rounds), "wall")
    one = case(name, "time per step", iterations, EAGER, samples, notes=[f"try_scopes takes: {chosen}"])
    best = min(samples, key=lambda scope: measuring.statistics.median(samples[scope]))
    measuring.require_ratio(one, f"what try_scopes takes ({chosen})", f"the fastest ({best})", samples[chosen], samples[best], 1.03)
    return one


def run(settings):
    torch.use_deterministic_algorithms(True)  # index_add_ and ResNet's backward pass
    for name, make in list(STEPS.items())[:settings.some(len(STEPS))]:
        yield choice_of(settings, name, make)
