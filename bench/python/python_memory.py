"""What the pool of a training step's graph takes, and what is told of it before the capture. Each step is captured twice, by
torch.cuda.graph and by pianola.Graph, and once with plan_memory; then on four lanes, without a plan and with one. Pools are counted by torch's own
snapshot of its segments. The bound is the most that the step's blocks have in use at a time: no pool holds the step in less. It is told of the
eager step, and again of the step as it was captured, since transformers takes other kernels, and other masks, where it sees a capture. That of lanes
counts what they use at once."""

import dataclasses
import gc
import importlib.util
from typing import Any, Callable

import pianola
import torch
from measuring import case, require
from torch import nn
from torch.nn import functional

BOUND, TORCH, PIANOLA, TOLD, PLANNED, LANES, PLANNED_LANES = (
    "most in use at a time", "torch.cuda.graph", "pianola.Graph", "told before", "pianola.Graph, plan_memory", "pianola.Graph, branches=4",
    "pianola.Graph, branches=4, plan_memory")
WARMUP, MIB = 3, 1 << 20


@dataclasses.dataclass
class Trained:
    title: str
    model: Callable[[], nn.Module]
    inputs: Callable[[torch.Generator], dict[str, Any]]  # on the CPU
    loss: Callable[[Any, dict], torch.Tensor] = lambda out, inputs: out.loss


def of_images(title, make, batch, size, classes=1000):
    def inputs(generator):
        return {"x": torch.randn(batch, 3, size, size, generator=generator), "labels": torch.randint(classes, (batch,), generator=generator)}

    class Called(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = make()

        def forward(self, x, labels):
            return self.net(x)

    return Trained(f"{title}, batch {batch} x 3 x {size} x {size}", Called, inputs, lambda out, given: functional.cross_entropy(out, given["labels"]))


def of_words(title, make, vocabulary, batch, length):
    def inputs(generator):
        ids = torch.randint(vocabulary, (batch, length), generator=generator)
        return {"input_ids": ids, "labels": ids.clone()}

    return Trained(f"{title}, batch {batch} x {length}", make, inputs)


def from_torchvision(settings, scale=1):
    """@param scale  So many times the batch."""
    import torchvision.models as zoo

    batch, size = (2, 64) if settings.quick else (32 * scale, 224)
    for name, make in (("resnet18", zoo.resnet18), ("resnet50", zoo.resnet50), ("efficientnet_b0", zoo.efficientnet_b0)):
        if not settings.quick or name == "resnet18":
            yield of_images(f"torchvision {name}", make, batch, size)
    if not settings.quick:
        yield of_images("torchvision vit_b_16", zoo.vit_b_16, 16 * scale, 224)


def from_timm(settings, scale=1):
    import timm

    yield of_images("timm convnext_tiny", lambda: timm.create_model("convnext_atto" if settings.quick else "convnext_tiny"),
                    *((2, 64) if settings.quick else (32 * scale, 224)))


def mixtral(hf):
    config = hf.MixtralConfig(hidden_size=512, intermediate_size=1792, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=8,
                              num_local_experts=8, vocab_size=32_000, use_cache=False)
    config._experts_implementation = "grouped_mm"  # the sizes of its groups stay on the device
    return lambda: hf.MixtralForCausalLM(config).to(torch.bfloat16)


def from_transformers(settings, scale=1):
    import transformers as hf

    few = settings.some(12)

    def made(model, config):
        return lambda: model(config)

    gpt2 = hf.GPT2Config(n_layer=few, n_embd=96 if settings.quick else 768, vocab_size=500 if settings.quick else 50_257, use_cache=False)
    batch, length = (2, 16) if settings.quick else (8 * scale, 512)
    yield of_words("transformers GPT-2", made(hf.GPT2LMHeadModel, gpt2), gpt2.vocab_size, batch, length)
    if settings.quick:
        return
    llama = hf.LlamaConfig(hidden_size=1024, intermediate_size=2816, num_hidden_layers=12, num_attention_heads=16, vocab_size=32_000, use_cache=False)
    yield of_words("transformers Llama", made(hf.LlamaForCausalLM, llama), llama.vocab_size, 4 * scale, 512)
    yield of_words("transformers Mixtral, 8 experts, bfloat16", mixtral(hf), 32_000, 4 * scale, 512)
    t5 = hf.T5Config(d_model=512, num_layers=6, num_heads=8, use_cache=False, decoder_start_token_id=0, pad_token_id=0)
    yield of_words("transformers T5", made(hf.T5ForConditionalGeneration, t5), t5.vocab_size, 8 * scale, 256)
    opt = hf.OPTConfig(hidden_size=768, num_hidden_layers=12, ffn_dim=3072, num_attention_heads=12, use_cache=False)
    yield of_words("transformers OPT", made(hf.OPTForCausalLM, opt), opt.vocab_size, 4 * scale, 512)


class UNet(nn.Module):
    """As in milesial/Pytorch-UNet: two convolutions a level, sides handed across."""

    def __init__(self, width=32, levels=4):
        super().__init__()
        widths = [width << level for level in range(levels + 1)]
        self.down = nn.ModuleList(self._two(one, other) for one, other in zip([3, *widths], widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(other, one, 2, stride=2) for one, other in zip(widths, widths[1:]))
        self.join = nn.ModuleList(self._two(2 * one, one) for one in widths[:-1])
        self.head = nn.Conv2d(width, 2, 1)

    @staticmethod
    def _two(one, other):
        def conv(inputs):
            return nn.Conv2d(inputs, other, 3, padding=1, bias=False), nn.BatchNorm2d(other), nn.ReLU(inplace=True)

        return nn.Sequential(*conv(one), *conv(other))

    def forward(self, x, labels):
        sides = []
        for level, block in enumerate(self.down):
            x = block(functional.max_pool2d(x, 2) if level else x)
            sides.append(x)
        sides.pop()
        for up, join in zip(reversed(self.up), reversed(self.join)):
            x = join(torch.cat([sides.pop(), up(x)], 1))
        return self.head(x)


def written_out(settings, scale=1):
    batch, size = (1, 32) if settings.quick else (8 * scale, 256)

    def inputs(generator):
        return {"x": torch.randn(batch, 3, size, size, generator=generator), "labels": torch.randint(2, (batch, size, size), generator=generator)}

    yield Trained(f"U-Net, batch {batch} x 3 x {size} x {size}", UNet, inputs, lambda out, given: functional.cross_entropy(out, given["labels"]))


def step_of(trained, device, of=torch.optim.AdamW):
    torch.manual_seed(1)
    model = trained.model().train().to(device)
    optimizer = of(model.parameters(), lr=1e-5, **({"capturable": True} if device != "cpu" else {}))
    given = {name: value.to(device) for name, value in trained.inputs(torch.Generator().manual_seed(2)).items()}

    def step():
        optimizer.zero_grad()
        loss = trained.loss(model(**given), given)
        loss.backward()
        optimizer.step()

    return step


def by_torch(step):
    """Bytes of the pool that torch.cuda.graph makes."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARMUP):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    return in_pool(graph.pool())


def in_pool(pool):
    return sum(segment["total_size"] for segment in torch.cuda.memory_snapshot() if tuple(segment["segment_pool_id"]) == tuple(pool))


def by_pianola(step, device, **options):
    graph = pianola.Graph(device)
    graph.capture(step, warmup=WARMUP, accept_capture_path=True, **options)  # transformers asks whether it is captured
    return graph.info()


def clean(device):
    gc.collect()
    if device != "cpu":
        torch.cuda.empty_cache()


def figures_of(trained, device):
    forecast = pianola.predict_memory(step_of(trained, device), device=device)
    told, infos = {BOUND: forecast.bound_bytes, TOLD: forecast.pool_bytes}, {}
    clean(device)
    if device != "cpu":
        told[TORCH] = by_torch(step_of(trained, device))
        clean(device)
        for name, options in ((PIANOLA, {}), (PLANNED, {"plan_memory": True}), (LANES, {"branches": 4}),
                              (PLANNED_LANES, {"branches": 4, "plan_memory": True})):
            infos[name] = by_pianola(step_of(trained, device), device, **options)
            told[name] = infos[name].pool_bytes
            clean(device)
    return told, forecast, infos


def require_little_more(made, told, infos):
    """Than the bound of what was captured: 1.02x and two MiB; and than torch's: nothing, or 0.9x where that lies far above the bound."""
    planned, bound, torchs = told[PLANNED], max(infos[PLANNED].planned_bound_bytes, 1), told[TORCH]
    ratio = (planned - 2 * MIB) / bound
    require(made, f"{PLANNED}, less 2 MiB: at most 1.02x of what it has in use at a time", ratio, 1.02, ratio <= 1.02)
    limit = 0.9 if torchs > 1.15 * bound else 1
    require(made, f"{PLANNED}: at most {limit}x of {TORCH}", planned / torchs, limit, planned <= limit * torchs)


def require_little_more_on_lanes(made, told, infos):
    """Than their own bound, of what lies by the plan; and of all, cuBLAS's workspaces too, than torch's."""
    lanes = infos[PLANNED_LANES]
    ratio = (lanes.planned_bytes - 2 * MIB) / max(lanes.planned_bound_bytes, 1)
    require(made, f"{PLANNED_LANES}, its plan less 2 MiB: at most 1.03x of its bound", ratio, 1.03, ratio <= 1.03)
    ratio = told[PLANNED_LANES] / told[TORCH]
    require(made, f"{PLANNED_LANES}: at most 1.1x of {TORCH}", ratio, 1.1, ratio <= 1.1)


def words_of(name, info):
    lanes = info.branches
    if lanes is None:
        return f"{name}: {info.planned_bytes / MIB:.0f} MiB planned, its bound {info.planned_bound_bytes / MIB:.0f}"
    kept = "kept" if lanes.rebuilt else f"not kept: {lanes.reason}"
    return (f"{name}: {info.planned_bytes / MIB:.0f} MiB planned, its bound {info.planned_bound_bytes / MIB:.0f}, "
            f"workspaces {lanes.workspace_bytes / MIB:.0f}; a replay as captured {lanes.serial_us:.0f} us, on lanes {lanes.rebuilt_us:.0f} us, {kept}")


def run(settings):
    sources = (("torchvision", from_torchvision), ("timm", from_timm), ("transformers", from_transformers), ("torch", written_out))
    for package, make in sources:
        if importlib.util.find_spec(package) is None:
            settings.notes.append(f"{package} is not installed: its models are left out")
            continue
        for trained in make(settings):
            told, forecast, infos = figures_of(trained, settings.device)
            made = case(trained.title, "bytes of the pool", 1, BOUND, {name: [bytes / MIB] for name, bytes in told.items()}, unit="MiB",
                        notes=[f"{forecast.blocks} blocks; most in use at {forecast.peak_place}",
                               *(words_of(name, infos[name]) for name in (PLANNED, LANES, PLANNED_LANES) if name in infos)])
            if PIANOLA in told:
                off = abs(told[TOLD] / told[PIANOLA] - 1)
                require(made, "told before: within 0.05 of the pool", off, 0.05, off <= 0.05)
                ratio = told[PIANOLA] / told[TORCH]
                require(made, "pianola.Graph: at most 1.01x of torch.cuda.graph", ratio, 1.01, ratio <= 1.01)
                require_little_more(made, told, infos)
                require_little_more_on_lanes(made, told, infos)
            yield made
