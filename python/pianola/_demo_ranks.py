"""`torchrun ... -m pianola demo`: the demo's training on several ranks, by DistributedDataParallel, eagerly and with one graph a rank.

Without torchrun the demo is the program's, in C++ (apps/demo): the same kind of model on one device.
"""

import argparse
import contextlib
import dataclasses
import math
import os
import sys
import time
from pathlib import Path
from typing import Any, Callable, Iterator, NoReturn, Optional, Sequence

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs to give the same bits twice

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from ._errors import Error, UsageError
from ._graphed import graphed

_UNEQUAL = 1
_USAGE = 2
_TEXTS = (
    "/usr/share/common-licenses/GPL-3",
    "/usr/share/common-licenses/GPL-2",
    "/usr/share/common-licenses/Apache-2.0",
    "README.md",
)
_OF_ONE_PROCESS = ("--json", "--lanes")


@dataclasses.dataclass(frozen=True)
class _Sizes:
    layers: int
    width: int
    heads: int
    context: int
    dropout: float
    batch: int
    steps: int
    rate: float


_SIZES = {
    "cpu": _Sizes(layers=3, width=64, heads=4, context=32, dropout=0.05, batch=16, steps=160, rate=8e-3),
    "cuda": _Sizes(layers=6, width=192, heads=6, context=128, dropout=0.1, batch=16, steps=600, rate=2e-3),
}


class _Block(nn.Module):
    def __init__(self, sizes: _Sizes) -> None:
        super().__init__()
        width = sizes.width
        self.heads, self.dropout = sizes.heads, nn.Dropout(sizes.dropout)
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.attention_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(sizes.dropout))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), mask)
        return x + self.mlp(self.mlp_norm(x))

    def attention(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = x.shape
        by_head = self.query_key_value(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = by_head.permute(2, 0, 3, 1, 4).unbind(0)
        scores = query @ key.transpose(2, 3) / math.sqrt(width // self.heads) + mask
        mixed = self.dropout(scores.softmax(-1)) @ value
        return self.dropout(self.attention_out(mixed.transpose(1, 2).reshape(batch, length, width)))


class _CharGpt(nn.Module):
    def __init__(self, vocabulary: int, sizes: _Sizes) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, sizes.width), nn.Embedding(sizes.context, sizes.width)
        for embedding in (self.tokens, self.places):
            nn.init.normal_(embedding.weight, std=0.1)
        self.blocks = nn.ModuleList(_Block(sizes) for _ in range(sizes.layers))
        self.norm, self.head = nn.LayerNorm(sizes.width), nn.Linear(sizes.width, vocabulary)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(sizes.context))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places.weight
        for block in self.blocks:
            x = block(x, self.mask)
        return self.head(self.norm(x))


class _Text:
    """A text as a sequence of small numbers, one for each distinct byte."""

    def __init__(self, file: Path, context: int) -> None:
        try:
            content = torch.tensor(list(file.read_bytes()), dtype=torch.long)
        except OSError as error:
            raise UsageError(f"cannot read the text '{file}': {error.strerror}; give a readable text file with --text") from None
        if len(content) < 2 * context:
            raise UsageError(f"the text '{file}' has {len(content)} characters, and at least {2 * context} are needed; "
                             "give a longer text with --text")  # fmt: skip
        self.file = file
        self.symbols, self.tokens = content.unique(return_inverse=True)

    def batches(self, sizes: _Sizes, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Pieces of it, other ones on each rank, and the same pieces one character later."""
        chooser = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
        piece = torch.arange(sizes.context + 1)
        for _ in range(sizes.steps):
            starts = torch.randint(len(self.tokens) - sizes.context, (sizes.batch, 1), generator=chooser)
            chosen = self.tokens[starts + piece]
            yield chosen[:, :-1], chosen[:, 1:]


def _default_text() -> Path:
    for file in map(Path, _TEXTS):
        if file.is_file() and file.stat().st_size > 0:
            return file
    raise UsageError(f"found neither {_TEXTS[0]} nor a README.md to learn from; name a text file with --text")


@dataclasses.dataclass
class _Run:
    """What one training leaves behind on a rank."""

    losses: list[Tensor]
    state: list[Tensor]
    ms_per_step: float
    replays: int
    reasons: list[str]


class _Training:
    def __init__(self, text: _Text, sizes: _Sizes, device: torch.device, seed: int) -> None:
        self.text, self.sizes, self.device, self.seed = text, sizes, device, seed

    def run(self, branches: Optional[int], show: Callable[[int, float], None]) -> _Run:
        """@param branches  Of the graph; None: eagerly."""
        torch.manual_seed(self.seed)
        model = DistributedDataParallel(_CharGpt(len(self.text.symbols), self.sizes).to(self.device))
        torch.manual_seed(self.seed + dist.get_rank())  # each rank drops out other values
        optimizer = torch.optim.AdamW(model.parameters(), lr=self.sizes.rate, betas=(0.9, 0.99), weight_decay=0.1)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.sizes.rate, self.sizes.steps + 1)

        def step(tokens: Tensor, following: Tensor) -> Tensor:
            loss = F.cross_entropy(model(tokens).flatten(0, 1), following.flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            return loss.detach()

        if branches is None:
            losses, taken = self._iterate(step, show)
            return _Run(losses, self._state(model, optimizer), taken, 0, [])
        replay = graphed(step, branches=branches)
        losses, taken = self._iterate(replay, show)
        known = replay.info().signatures
        return _Run(losses, self._state(model, optimizer), taken, sum(one.replays for one in known),
                    [one.reason for one in known if one.reason])  # fmt: skip

    def _iterate(self, call: Callable[[Tensor, Tensor], Tensor], show: Callable[[int, float], None]) -> tuple[list[Tensor], float]:
        """The losses, and how many ms a step of the second half took; warm-up and capture are in the first."""
        steps, losses = self.sizes.steps, list[Tensor]()
        half, begin = steps // 2, self._now()
        for number, batch in enumerate(self.text.batches(self.sizes, self.seed)):
            if number == half:
                begin = self._now()
            losses.append(call(*(one.to(self.device) for one in batch)))
            if (number + 1) * 5 // steps > number * 5 // steps:
                show(number + 1, losses[-1].item())
        return losses, 1000 * (self._now() - begin) / (steps - half)

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def _state(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
        moments = [one for of_one in optimizer.state.values() for one in of_one.values()]
        drawn = torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else torch.get_rng_state()
        return [*model.state_dict().values(), *moments, drawn]


def _differing(eager: _Run, replay: _Run) -> int:
    pairs = list(zip(eager.losses + eager.state, replay.losses + replay.state, strict=True))
    return sum(not torch.equal(one, other) for one, other in pairs)


def _differs_from_rank_0(run: _Run, count: int) -> bool:
    """Whether one of the weights, the first `count` tensors of the state, does."""
    differs = False
    for mine in run.state[:count]:
        theirs = mine.clone()
        dist.broadcast(theirs, src=0)
        differs |= not torch.equal(mine, theirs)
    return differs


def _chosen_device(name: str) -> torch.device:
    here, ranks = torch.cuda.device_count(), int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
    if name == "cuda" and here < ranks:
        raise UsageError(f"{ranks} ranks on this machine want a GPU each, and there are {here}; start {max(here, 1)}, or give --device cpu")
    if name == "cpu" or here < ranks or not dist.is_nccl_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", os.environ["RANK"])))


def _print(*lines: str) -> None:
    """On rank 0 alone."""
    if dist.get_rank() == 0:
        print(*lines, sep="\n", flush=True)


def _describe(text: _Text, sizes: _Sizes, device: torch.device) -> None:
    model = _CharGpt(len(text.symbols), sizes)
    parameters = sum(p.numel() for p in model.parameters())
    _print(
        f"The same training twice on {dist.get_world_size()} ranks by DistributedDataParallel: eager, then by replaying one graph on each",
        f"  device  {device.type}, {dist.get_backend()}",
        f"  text    {text.file}: {len(text.tokens)} characters, {len(text.symbols)} distinct",
        f"  model   GPT: {sizes.layers} layers, width {sizes.width}, {sizes.heads} heads, context {sizes.context}, "
        f"dropout {sizes.dropout}; {parameters} parameters",
        f"  step    forward, loss, backward, clipping, AdamW on {sizes.batch} x {sizes.context} characters of each rank; {sizes.steps} steps",
        "",
    )


def _progress(name: str, sizes: _Sizes) -> Callable[[int, float], None]:
    def show(done: int, loss: float) -> None:
        _print(f"  {name:<6}  step {done:>{len(str(sizes.steps))}}/{sizes.steps}  loss {loss:.3f}  {'#' * round(7 * loss)}")

    return show


_COLUMNS = ("rank", "eager (ms/step)", "replay (ms/step)", "speed-up", "loss", "replayed", "bit-equal")


def _row(rank: int, eager: _Run, replay: _Run, steps: int, equal: bool) -> tuple[str, ...]:
    return (
        str(rank),
        f"{eager.ms_per_step:.2f}",
        f"{replay.ms_per_step:.2f}",
        f"{eager.ms_per_step / replay.ms_per_step:.2f}",
        f"{replay.losses[-1].item():.4f}",
        f"{replay.replays} of {steps}",
        "yes" if equal else "NO",
    )


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *rows)]
    lines = [_COLUMNS, ["-" * width for width in widths], *rows]
    _print("", *("  ".join(cell.rjust(width) for cell, width in zip(line, widths)) for line in lines), "")


def _compare(eager: _Run, replay: _Run, sizes: _Sizes, weights: int) -> bool:
    """Prints what came out on all ranks; whether it is what was promised. The same answer on each rank."""
    unequal, apart = _differing(eager, replay), _differs_from_rank_0(replay, weights)
    mine = (_row(dist.get_rank(), eager, replay, sizes.steps, not unequal), unequal, apart, replay.replays > 0, replay.reasons)
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, mine)
    rows, unequals, aparts, replayed, reasons = zip(*told)
    _print_table(rows)
    faults = [f"rank {rank}: {count} tensors differ from eager's" for rank, count in enumerate(unequals) if count]
    faults += [f"rank {rank}: the weights are not those of rank 0" for rank, differs in enumerate(aparts) if differs]
    faults += [f"rank {rank}: no step was replayed" for rank, any_was in enumerate(replayed) if not any_was]
    faults += [f"rank {rank}: {reason}" for rank, of_rank in enumerate(reasons) for reason in of_rank]
    good = (f"bit-equal on all ranks, by torch.equal: {sizes.steps} losses, all weights, moments and step counters, the state of the",
            "random generator; all ranks have the same weights")  # fmt: skip
    failed = any(unequals) or any(aparts) or not all(replayed)
    _print(*(() if failed else good), *faults)
    return not failed


def _train(options: argparse.Namespace, device: torch.device, text: _Text, sizes: _Sizes) -> bool:
    _describe(text, sizes, device)
    training = _Training(text, sizes, device, options.seed)
    weights = len(_CharGpt(len(text.symbols), sizes).state_dict())
    eager = training.run(None, _progress("eager", sizes))
    replay = training.run(options.branches, _progress("replay", sizes))
    return _compare(eager, replay, sizes, weights)


@contextlib.contextmanager
def _process_group(device: torch.device) -> Iterator[None]:
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()  # drops the graphs, which NCCL would wait for


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    """As the program's; `pianola demo --help` prints them."""
    for option in _OF_ONE_PROCESS:
        if any(word.partition("=")[0] == option for word in arguments):
            raise UsageError(f"{option} is of the demo on one device; leave it out, or start it without torchrun")
    parser = _Parser(prog="pianola demo", add_help=False, allow_abbrev=False)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--steps", type=_positive)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=_positive, default=1)
    parser.add_argument("--branches", type=int, choices=range(9), default=0)
    return parser.parse_args(arguments)


def run(arguments: Sequence[str]) -> int:
    """The exit code of `pianola demo ARGUMENTS...` on this rank."""
    options = _options(arguments)
    device = _chosen_device(options.device)
    sizes = _SIZES[device.type]
    if options.steps:
        sizes = dataclasses.replace(sizes, steps=options.steps)
    text = _Text(options.text or _default_text(), sizes.context)
    torch.set_num_threads(options.threads)
    torch.use_deterministic_algorithms(True)
    with _process_group(device):
        return 0 if _train(options, device, text, sizes) else _UNEQUAL


def main(arguments: Sequence[str]) -> NoReturn:
    """Ends the process."""
    try:
        raise SystemExit(run(arguments))
    except UsageError as error:
        code = _USAGE
        if os.environ.get("LOCAL_RANK", "0") == "0":  # all ranks of a machine have the same command line and files
            print(f"pianola: {error}", file=sys.stderr)
    except Error as error:
        code = _UNEQUAL
        print(f"pianola: rank {os.environ['RANK']}: {error}", file=sys.stderr)
    raise SystemExit(code)
