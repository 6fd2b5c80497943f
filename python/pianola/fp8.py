"""Linear layers whose products are in 8 bits, forward and backward, on torch's own kernels.

    pianola.fp8.convert(model)                            # in place; scales from earlier steps
    with pianola.fp8.autocast():
        loss = loss_of(model(x))
    loss.backward()
    optimizer.step()

Scales and amax histories lie on the device and are buffers of the model, so that graphs renew them, and checkpoints have them.
"""

import dataclasses
import threading
from typing import Any, Callable, Optional

import torch
from torch import nn

from . import _fp8_recipes
from ._errors import refuse
from ._load import _C

__all__ = ["Float8Linear", "Recipe", "Scales", "autocast", "convert", "scales_of"]


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What layers compute with in 8 bits, and how. Names and meanings of the first six are Transformer Engine's, or near to them.

    Raises:
        UsageError: a number is out of its range, or a word is none of those below.
    """

    scaling: str = "delayed"
    """A scale is what a tensor is multiplied by before it is cast. "delayed": one for a tensor, from its largest magnitudes in earlier
    steps. "tensor": one, from itself. "row": one for each row. "block": for each 1 x 128, of weights 128 x 128; powers of two."""
    format: str = "hybrid"
    """"hybrid": e4m3 for inputs and weights, e5m2 for gradients. "e4m3": for all."""
    margin: int = 0
    """Delayed: scales are 2^margin smaller, for what may grow meanwhile."""
    amax_history_length: int = 1024
    """Delayed: from how many steps."""
    amax_compute: str = "max"
    """Delayed: "max" of the history, or its "most_recent"."""
    interval: int = 1
    """Delayed: scales are computed anew at every `interval`-th step."""
    powers_of_two: bool = False
    """"tensor" and "row": scales are rounded down to one."""

    def __post_init__(self) -> None:
        self.native()

    def native(self) -> "_C.Fp8Recipe":
        """As C++ has it."""
        return _C.Fp8Recipe(**dataclasses.asdict(self))

    def __str__(self) -> str:
        return self.native().to_text()


def as_recipe(recipe: Any) -> Recipe:
    """One of Transformer Engine's, too."""
    return recipe if isinstance(recipe, Recipe) else Recipe(**_fp8_recipes.options_of(recipe))


class Scales(nn.Module):
    """The scales and amax histories of a model's layers, with delayed scaling: buffers. float32, whatever the model is cast to."""

    scale: torch.Tensor
    history: torch.Tensor
    updates: torch.Tensor

    def __init__(self, layers: int, recipe: Recipe, device: torch.device) -> None:
        super().__init__()
        self.recipe = recipe
        self.register_buffer("scale", torch.ones(3 * layers, device=device))
        self.register_buffer("history", torch.zeros(recipe.amax_history_length, 3 * layers, device=device))
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64, device=device))
        self._known: Any = None

    def reset_parameters(self) -> None:
        """Nothing was noted yet."""
        with torch.no_grad():
            self.scale.fill_(1.0)
            self.history.zero_()
            self.updates.zero_()

    def table(self) -> "_C.Fp8ScaleTable":
        """Of the buffers as they are: moving a model makes others."""
        buffers = (self.scale, self.history, self.updates)
        if self._known is None or any(one is not other for one, other in zip(self._known[0], buffers)):
            self._known = (buffers, _C.Fp8ScaleTable(*buffers, self.recipe.native()))
        return self._known[1]

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> "Scales":
        before = {name: buffer for name, buffer in self._buffers.items() if buffer is not None}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in before.items():  # model.half() and the like are not for them
            moved = self._buffers[name]
            assert moved is not None
            if moved.dtype != buffer.dtype:
                self._buffers[name] = buffer.to(moved.device)
        if before["scale"].is_meta and not self.scale.is_meta:
            self.reset_parameters()
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_known": None}


class Float8Linear(nn.Linear):
    """nn.Linear whose products are in 8 bits inside of `autocast`; else it is nn.Linear. Made by `convert`."""

    _place: Any = None
    _state: Any = None

    def _become(self, recipe: Recipe, scales: Optional[Scales], number: int) -> None:
        self._place = (recipe, scales, number)  # scales are those of all layers, and no child of each
        self._state = None

    @property
    def recipe(self) -> Optional[Recipe]:
        """The one that `convert` was given; None: nobody converted it."""
        return None if self._place is None else self._place[0]

    @property
    def scales(self) -> Optional[Scales]:
        """Those of all layers of its model, with delayed scaling; else None."""
        return None if self._place is None else self._place[1]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if self._place is None:  # nobody converted it
            return super().forward(input)
        recipe, scales, number = self._place
        table = None if scales is None else scales.table()
        if self._state is None or self._state[0] is not table:
            self._state = (table, _C.Fp8LinearState(recipe.native(), table, number))
        return self._state[1].forward(input, self.weight, self.bias, self.training)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_state": None}

    def extra_repr(self) -> str:
        return super().extra_repr() + ("" if self._place is None else f", {self._place[0]}")


def convert(
    model: nn.Module, recipe: Any = None, filter: Optional[Callable[[str, nn.Linear], bool]] = None
) -> nn.Module:
    """Makes the linear layers of a model `Float8Linear`, in place: parameters, hooks and names stay.

    Args:
        model: on its device already or not; converted before it is captured.
        recipe: a Recipe, or one of Transformer Engine's. None: delayed scaling, from a history of 1024.
        filter: of a layer's name and the layer, whether it is one. None: all whose features are multiples of 16 (of 128 with blocks);
            others stay as they are, such as a head of 10 classes. Subclasses of nn.Linear always stay.

    Returns:
        The model. With delayed scaling the first of its layers has the scales of all of them for a child, `fp8_scales`.

    Raises:
        UsageError: no layer is meant, or one of them does not fit; the model was converted before.
        UnsupportedError: a recipe of Transformer Engine's says what is not computed here.
    """
    recipe = Recipe() if recipe is None else as_recipe(recipe)
    multiple = 128 if recipe.scaling == "block" else 16
    layers: dict[str, nn.Linear] = {}
    for name, module in model.named_modules():
        if isinstance(module, Float8Linear):
            refuse(f"layer '{name}' is a Float8Linear already", "convert a model once", where="fp8.convert")
        if type(module) is not nn.Linear:
            continue
        fits = module.in_features % multiple == 0 and module.out_features % multiple == 0
        if filter is None:
            if fits:
                layers[name] = module
        elif filter(name, module):
            if not fits:
                features = f"{module.in_features} and {module.out_features}"
                refuse(f"layer '{name}' has {features} features, and must have multiples of {multiple}", "leave it out by `filter`",
                       where="fp8.convert")  # fmt: skip
            layers[name] = module
    if not layers:
        which = f"whose features are multiples of {multiple}" if filter is None else "that `filter` takes"
        refuse(f"the model has no nn.Linear {which}", "see which layers it has: model.named_modules()", where="fp8.convert")
    scales = None
    if recipe.scaling == "delayed":
        scales = Scales(len(layers), recipe, next(iter(layers.values())).weight.device)
        next(iter(layers.values())).add_module("fp8_scales", scales)  # the model itself may be a list of its children
    for number, layer in enumerate(layers.values()):
        layer.__class__ = Float8Linear
        assert isinstance(layer, Float8Linear)
        layer._become(recipe, scales, number)
    return model


def scales_of(model: nn.Module) -> Scales:
    """Those of a model that `convert` gave delayed scaling.

    Raises:
        UsageError: it has none.
    """
    for module in model.modules():
        if isinstance(module, Scales):
            return module
    refuse("the model has no scales of earlier steps", "convert it with delayed scaling", where="fp8.scales_of")


class autocast:
    """A region of this thread in which `Float8Linear` layers compute with 8 bits. The backward pass needs none. At the end of the
    outermost region the scales of the layers that ran in it are computed anew, in one operation.

    Graphs of parts that were captured in a region are replayed in one: outside, or in one with another recipe, `graphed` has another
    graph, and what is captured by hand is refused.

    Args:
        enabled: False: as outside of all regions.
        recipe: a Recipe, or one of Transformer Engine's. None: that of `convert`. Another one needs no scales of earlier steps, so that
            it is not delayed scaling.
        group: process group over whose ranks each amax is the largest; one collective for all layers of a model. None: this rank alone,
            as with a recipe of Transformer Engine's that says reduce_amax=False.
        calibrating: with enabled=False: amaxes are noted for later, and nothing is in 8 bits.
        is_first_microbatch: None: weights are quantised each time. True: they are, and kept; False: those that were kept serve.
    """

    def __init__(
        self,
        enabled: bool = True,
        recipe: Any = None,
        group: Any = None,
        calibrating: bool = False,
        is_first_microbatch: Optional[bool] = None,
    ) -> None:
        if not _fp8_recipes.reduces_amaxes(recipe):
            group = None
        self.enabled, self.calibrating, self.is_first_microbatch, self.group = enabled, calibrating, is_first_microbatch, group
        self.recipe = None if recipe is None else as_recipe(recipe)
        native = None if self.recipe is None else self.recipe.native()
        reduce = None if group is None else lambda amaxes: torch.distributed.all_reduce(amaxes, torch.distributed.ReduceOp.MAX, group)
        self._region = _C.Fp8Region(enabled, native, calibrating, is_first_microbatch, reduce)

    def __enter__(self) -> "autocast":
        self._region.enter()
        open_regions().append(self)
        return self

    def __exit__(self, *exception: Any) -> None:
        try:
            self._region.exit()
        finally:
            opened = open_regions()
            if self in opened:  # else this is another thread
                opened.remove(self)


_of_thread = threading.local()


def open_regions() -> list[autocast]:
    """Those of this thread, the innermost last."""
    opened = _of_thread.__dict__.get("regions")
    if opened is None:
        opened = _of_thread.regions = []
    return opened
