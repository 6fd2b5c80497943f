"""Training steps of compiled models: torch.compile alone, with its own graphs, and in the graph of a whole step.

All contenders train the same weights by AdamW as it comes. What is replayed has to leave the same bits as the compiled model without a
graph; eager rounds otherwise, so that it is a time without a comparison.
"""

import copy

import torch
from measuring import alternate, case, check_equal, require_speedup, series
from torch.nn import functional

EAGER = "eager"
GRAPHED = "@pianola.graphed"
COMPILED = "torch.compile"
REDUCE = "torch.compile, reduce-overhead"
BOTH = "@pianola.graphed, torch.compile"
LANES = "@pianola.graphed, torch.compile, branches=4"
BY_ITSELF = "@pianola.graphed(compile=\"auto\")"

ITERATIONS, BURST = 20, 10
CHECKED = 12  # steps
DECIDED = 60  # steps, until a choice is made


def llama(settings):
    import transformers

    layers, width, batch, length = (1, 64, 2, 16) if settings.quick else (8, 512, 4, 128)
    config = transformers.LlamaConfig(
        hidden_size=width, intermediate_size=width * 11 // 4, num_hidden_layers=layers, num_attention_heads=8, num_key_value_heads=8,
        vocab_size=8192, use_cache=False)  # fmt: skip
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(config).to(settings.device, torch.bfloat16)
    words = torch.randint(8192, (batch, length), device=settings.device)
    places = torch.arange(length, device=settings.device).expand(batch, length)
    mask = torch.ones(length, length, dtype=torch.bool, device=settings.device).tril().expand(batch, 1, length, length)

    def loss_of(model, words, places, mask):
        return model(input_ids=words, position_ids=places, attention_mask=mask, labels=words, use_cache=False).loss

    return f"Llama, {layers} x {width}, batch {batch} x {length}, bfloat16", model, loss_of, (words, places, mask)


def resnet(settings):
    import timm

    name, size, batch = ("resnet18", 32, 2) if settings.quick else ("resnet50", 224, 8)
    torch.manual_seed(1)
    model = timm.create_model(name, num_classes=1000).train().to(settings.device)
    images, labels = torch.randn(batch, 3, size, size), torch.randint(1000, (batch,))

    def loss_of(model, images, labels):
        return functional.cross_entropy(model(images), labels)

    return f"{name}, batch {batch} x 3 x {size} x {size}", model, loss_of, (images.to(settings.device), labels.to(settings.device))


def mlp(settings):
    torch.manual_seed(1)
    layers = [layer for _ in range(settings.some(16)) for layer in (torch.nn.Linear(256, 256), torch.nn.LayerNorm(256), torch.nn.GELU())]
    model = torch.nn.Sequential(*layers).to(settings.device)
    x = torch.randn(32, 256, device=settings.device)
    return f"MLP, {len(layers) // 3} x 256, batch 32", model, lambda model, x: model(x).square().mean(), (x,)


def steps_of(way, model, loss_of, batch, notes):
    """(step, parameters)"""
    import pianola
    from pianola._graphed import taken

    model = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    called = model
    if way in (COMPILED, BOTH, LANES):
        called = torch.compile(model)
    elif way == REDUCE:
        called = torch.compile(model, mode="reduce-overhead")

    def step(*batch):
        if way == REDUCE:
            torch.compiler.cudagraph_mark_step_begin()
        optimizer.zero_grad()
        loss = loss_of(called, *batch)
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = step
    if way in (GRAPHED, BOTH):
        run = pianola.graphed(step)
    elif way == LANES:
        run = pianola.graphed(step, branches=4)
    elif way == BY_ITSELF:
        run = pianola.graphed(step, compile="auto")
    for _ in range(DECIDED if way == BY_ITSELF else CHECKED):
        loss = run(*batch).clone()
    if run is not step and not any(one.replays for one in run.info().signatures):
        raise RuntimeError(f"{way} stays eager: {run.info()}")
    if way == BY_ITSELF:
        notes.extend(run.info().compiled)
    elif run is not step:
        notes.append(f"{way}: {'; '.join(taken(run.info().signatures[0]))}")
    return lambda: run(*batch), [loss, *(parameter.detach().clone() for parameter in model.parameters())]


def cases_of(settings, made):
    title, model, loss_of, batch = made(settings)
    steps, results, notes = {}, {}, []
    for way in (EAGER, GRAPHED, COMPILED, REDUCE, BOTH, LANES, BY_ITSELF):
        torch._dynamo.reset()
        try:
            steps[way], results[way] = steps_of(way, model, loss_of, batch, notes)
        except RuntimeError as error:
            notes.append(f"no figures of {way}: {next(iter(str(error).splitlines()), '')}"[:300])
    for way, other in ((GRAPHED, EAGER), (BOTH, COMPILED), (LANES, COMPILED)):
        if way in results:
            check_equal(f"{title}, {way}, after {CHECKED} steps", results[way], results[other])
    samples = alternate(steps, settings.some(ITERATIONS), BURST, settings.rounds)
    wall = series(samples, "wall")
    time = case(title, "time per step", settings.some(ITERATIONS), REDUCE if REDUCE in steps else EAGER, wall, notes=notes)
    if BOTH in steps and REDUCE in steps:
        require_speedup(time, BOTH, REDUCE, wall, 1)
    return [time]


def run(settings):
    if settings.device == "cpu":
        settings.notes.append("torch.compile is left out on the CPU")
        return
    for made in (mlp, llama, resnet):
        yield from cases_of(settings, made)
