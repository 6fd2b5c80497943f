"""Linear layers in 8 bits: what casting takes, and forward and backward passes of wide and small transformers, graphed, against bfloat16
in torch.cuda.graph."""

import copy
import statistics

import pianola
import torch
from measuring import alternate, case, check_equal, require, require_ratio, require_speedup, series
from torch import nn
from torch.nn import functional

BF16, EAGER = "bfloat16, torch.cuda.graph", "eager Float8Linear"
TYPES = {"delayed": 1.25, "tensor": 1.25, "row": 1.08, "block": 1.0}  # by how much each has to be faster
LAYERS, WIDTH, HIDDEN, HEADS, BATCH, LENGTH = 4, 4096, 14336, 32, 8, 2048
WARMUP, CHECKED, MICROBATCHES = 3, 3, 8
ITERATIONS, BURST = 4, 2


class Block(nn.Module):
    """A block of a language model: normed attention and a gated MLP, no biases."""

    def __init__(self, width, hidden, heads, device):
        super().__init__()
        self.heads = heads
        kinds = {"bias": False, "device": device, "dtype": torch.bfloat16}
        self.norm1, self.norm2 = (nn.RMSNorm(width, device=device, dtype=torch.bfloat16) for _ in range(2))
        self.qkv, self.projection = nn.Linear(width, 3 * width, **kinds), nn.Linear(width, width, **kinds)
        self.gate, self.up, self.down = (nn.Linear(*sizes, **kinds) for sizes in ((width, hidden), (width, hidden), (hidden, width)))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(batch, length, width))
        h = self.norm2(x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


class Pass:
    """Forward and backward of one model; the weights of all of them are the same tensors."""

    def __init__(self, model, x, scaling=None, way="graphed", microbatches=1, keeps_weights=False):
        self.model = copy.deepcopy(model, {id(one): one for one in model.parameters()})
        self.x, self.microbatches, self.keeps_weights = x, microbatches, keeps_weights
        self.in_8_bits = scaling is not None
        if self.in_8_bits:
            pianola.fp8.convert(self.model, pianola.fp8.Recipe(scaling))
        if way == "graphed":
            self.step = pianola.graphed(self.run, warmup=WARMUP)
        elif way == "torch":
            self.step = self._captured()
        else:
            self.step = self.run

    def run(self):
        self.model.zero_grad()
        for number in range(self.microbatches):
            first = number == 0 if self.keeps_weights else None
            with pianola.fp8.autocast(enabled=self.in_8_bits, is_first_microbatch=first):
                loss = self.model(self.x).square().sum(-1).mean()
            loss.backward()
        return loss.detach()

    def _captured(self):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(WARMUP):
                self.run()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = self.run()
        return self.graph.replay

    def state(self):
        return [self.step(), *(one.grad for one in self.model.parameters())]


def wide(settings):
    sizes = (WIDTH, HIDDEN, HEADS) if settings.device == "cuda" else (128, 128, 4)
    torch.manual_seed(1)
    model = nn.Sequential(*(Block(*sizes, settings.device) for _ in range(LAYERS if settings.device == "cuda" else 1)))
    shape = (BATCH, LENGTH, sizes[0]) if settings.device == "cuda" else (2, 64, sizes[0])
    return model, torch.randn(shape, device=settings.device, dtype=torch.bfloat16, generator=None)


def check_replays(model, x, scaling):
    """Losses and gradients of replays are those of eager calls, and it is replayed."""
    eager, graphed = Pass(model, x, scaling, "eager"), Pass(model, x, scaling)
    torch.use_deterministic_algorithms(True)  # attention sums its gradients in another order in each call, else
    for _ in range(WARMUP + CHECKED):
        expected = [one.clone() for one in eager.state()]
        check_equal(scaling, graphed.state(), expected)
    torch.use_deterministic_algorithms(False)
    if not any(one.replays for one in graphed.step.info().signatures):
        raise RuntimeError(f"{scaling}: {graphed.step.info()}")


def time_of(run, iterations=20):
    run()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    taken = []
    for _ in range(3):
        start.record()
        for _ in range(iterations):
            run()
        end.record()
        end.synchronize()
        taken.append(1000 * start.elapsed_time(end) / iterations)
    return statistics.median(taken)


def products(model, x):
    """What the products of the model's linear layers take, us: (in bfloat16, in 8 bits with one scale, in fewer bits forward)."""
    tokens, plain, scaled = x.numel() // x.shape[-1], 0.0, 0.0
    one = torch.ones((), device=x.device)
    known = {}
    for layer in model.modules():
        if not isinstance(layer, nn.Linear):
            continue
        out, into = layer.weight.shape
        for rows, columns, summed, fast in ((tokens, out, into, True), (tokens, into, out, False), (out, into, tokens, False)):
            if (rows, columns, summed, fast) not in known:
                a, b = (torch.randn(n, summed, device=x.device, dtype=torch.bfloat16) for n in (rows, columns))
                a8, b8 = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
                known[rows, columns, summed, fast] = (
                    time_of(lambda: torch.mm(a, b.t())),
                    time_of(lambda: torch._scaled_mm(a8, b8.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=fast)),
                )
            taken = known[rows, columns, summed, fast]
            plain, scaled = plain + taken[0], scaled + taken[1]
    return plain, scaled


def training_cases(settings):
    model, x = wide(settings)
    title = f"{len(model)} layers of {x.shape[-1]}, {x.numel() // x.shape[-1]} tokens, forward and backward"
    plain, scaled = products(model, x) if settings.device == "cuda" else (0.0, 0.0)
    for scaling, wanted in TYPES.items():
        check_replays(model, x, scaling)
        made = {BF16: Pass(model, x, way="torch" if settings.device == "cuda" else "eager")}
        made |= {f"{scaling}, @pianola.graphed": Pass(model, x, scaling)}
        made |= {EAGER: Pass(model, x, scaling, "eager")} if scaling == "delayed" else {}
        for one in made.values():
            for _ in range(WARMUP + 2):
                one.step()
        taken = series(alternate({way: one.step for way, one in made.items()}, settings.some(ITERATIONS), BURST, settings.rounds), "wall")
        if scaling in ("delayed", "tensor") and settings.device == "cuda":
            taken["bound: bfloat16 with products in 8 bits"] = [one - plain + scaled for one in taken[BF16]]
        measured = case(f"{title}, {scaling}", "time per step", settings.some(ITERATIONS), BF16, taken)
        if settings.device == "cuda":
            require_speedup(measured, f"{scaling}, @pianola.graphed", BF16, taken, wanted)
            if scaling in ("delayed", "tensor"):
                medians = {way: statistics.median(one) for way, one in taken.items()}
                gains = [medians[BF16] - medians[way] for way in (f"{scaling}, @pianola.graphed", "bound: bfloat16 with products in 8 bits")]
                require(measured, f"{scaling}: at least 0.9 of the bound's gain", gains[0] / gains[1], 0.9, gains[0] >= 0.9 * gains[1])
        yield measured
        made.clear()
        if settings.device == "cuda":
            torch.cuda.empty_cache()


def small_case(settings):
    torch.manual_seed(2)
    model = nn.Sequential(*(Block(256, 1024, 8, settings.device) for _ in range(8 if settings.device == "cuda" else 1)))
    x = torch.randn(2, 128, 256, device=settings.device, dtype=torch.bfloat16)
    made = {BF16: Pass(model, x, way="torch" if settings.device == "cuda" else "eager")}
    made |= {f"{scaling}, @pianola.graphed": Pass(model, x, scaling) for scaling in ("delayed", "tensor", "row")}
    made |= {EAGER: Pass(model, x, "delayed", "eager")}
    for one in made.values():
        for _ in range(WARMUP + 2):
            one.step()
    taken = series(alternate({way: one.step for way, one in made.items()}, settings.some(20), 10, settings.rounds), "wall")
    measured = case(f"{len(model)} layers of 256, 256 tokens, forward and backward", "time per step", settings.some(20), BF16, taken)
    if settings.device == "cuda":
        for way in (f"{scaling}, @pianola.graphed" for scaling in ("delayed", "tensor", "row")):
            require_ratio(measured, way, BF16, taken[way], taken[BF16], 1.0)
    return measured


def microbatch_case(settings):
    model, x = wide(settings)
    x = x[:1]
    anew, kept = "weights cast in each", "weights kept"
    made = {anew: Pass(model, x, "delayed", microbatches=MICROBATCHES), kept: Pass(model, x, "delayed", "graphed", MICROBATCHES, True)}
    for one in made.values():
        for _ in range(WARMUP + 2):
            one.step()
    taken = series(alternate({way: one.step for way, one in made.items()}, settings.some(ITERATIONS), BURST, settings.rounds), "wall")
    return case(f"{MICROBATCHES} microbatches of {x.numel() // x.shape[-1]} tokens, delayed", "time per step", settings.some(ITERATIONS), anew, taken)


def casting_case(settings, rows=16384, columns=4096):
    """A cast reads 2 bytes an element and writes 1 as it lies and 1 transposed; a copy reads and writes 2."""
    values = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)
    other = torch.empty_like(values)
    data, transposed = (torch.empty(sizes, device="cuda", dtype=torch.float8_e4m3fn) for sizes in ((rows, columns), (columns, rows)))

    def cast(granularity, inverse, of_transposed):
        scale, amax = (torch.ones((), device="cuda"), torch.zeros((), device="cuda")) if granularity == 0 else (None, None)
        return lambda: torch.ops.pianola.fp8_quantize_(
            values, torch.float8_e4m3fn, granularity, granularity > 2, scale, amax, None, data, inverse, transposed, of_transposed)

    def scales(*sizes):
        return torch.empty(sizes, device="cuda")

    ways = {
        "copy": lambda: other.copy_(values),
        "delayed": cast(0, scales(), scales()),
        "tensor": cast(1, scales(), scales()),
        "row": cast(2, scales(rows, 1), scales(columns, 1)),
        "block 1 x 128": cast(3, scales(rows, columns // 128), scales(columns, rows // 128)),
        "block 128 x 128": cast(4, scales(rows // 128, columns // 128), scales(columns // 128, rows // 128)),
    }
    taken = series(alternate(ways, settings.some(50), 50, settings.rounds), "wall")
    measured = case(f"casting {rows} x {columns} of bfloat16, as it lies and transposed", "time per cast", settings.some(50), "copy", taken)
    for way in ("delayed", "block 1 x 128", "block 128 x 128"):
        rate = statistics.median(taken["copy"]) / statistics.median(taken[way])
        require(measured, f"{way}: at least 0.75 of a copy's bandwidth", rate, 0.75, rate >= 0.75)
    return measured


def run(settings):
    if settings.device == "cuda":
        yield casting_case(settings)
    yield small_case(settings)
    yield from training_cases(settings)
    yield microbatch_case(settings)
