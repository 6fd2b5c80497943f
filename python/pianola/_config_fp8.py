"""FP8 as Megatron-LM's configuration says it: which recipe, which layers, and the region around the model."""

import contextlib
import copy
import inspect
import weakref
from typing import Any, Iterator, Sequence

from torch import nn

from . import fp8
from ._errors import refuse
from ._find_layers import Named
from ._layer_parts import experts_of
from ._load import _C

# Megatron-LM's words for a Recipe's scaling.
_SCALINGS = {"delayed": "delayed", "tensorwise": "tensor", "blockwise": "block"}

# What has another meaning for the numbers than "yes, as usual", and is not computed here.
_NOT_HERE = {
    "fp8_wgrad": (True, "weight gradients are products in 8 bits, as all of a layer"),
    "fp8_param": (False, "weights stay in the model's dtype, for the optimizer"),
    "fp8_dot_product_attention": (False, "linear layers alone compute in 8 bits"),
    "fp8_multi_head_attention": (False, "linear layers alone compute in 8 bits"),
}


@contextlib.contextmanager
def in_fp8(model: nn.Module, layers: Sequence[Named], config: "_C.CudaGraphConfig", group: Any) -> Iterator[None]:
    """Converts the linear layers inside of `layers`, and, unless an exception ends the block, has each call of the model open a region. A
    model that was converted before stays as it is: it has to be what the configuration says, and its loop opens the regions.

    Raises:
        ConfigError: the configuration wants what is not computed here, or another conversion than the model's.
    """
    if config.fp4:
        _refuse(f"fp4 is {config.fp4}, and Pianola has no products in 4 bits", "leave it out")
    if not config.fp8:
        yield
        return
    for key, (usual, why) in _NOT_HERE.items():
        if getattr(config, key) != usual:
            _refuse(f"{key} is {str(not usual).lower()}, and Pianola does not compute that: {why}", f"leave {key} out")
    recipe = _recipe_of(config)
    converted = {name: one for name, one in model.named_modules() if isinstance(one, fp8.Float8Linear) and one.recipe is not None}
    if converted:
        _check_conversion(converted, recipe, says_scaling=config.fp8_recipe is not None)
        yield
        return
    linears = set(_linears_of(layers, config, 128 if recipe.scaling == "block" else 16))
    if not linears:
        _refuse(
            f"fp8 is {config.fp8}, and no layer of the model has an nn.Linear that can compute in 8 bits",
            "see pianola.fp8.convert for which can; or leave fp8 out",
        )
    fp8.convert(model, recipe, lambda name, linear: linear in linears)
    try:
        yield
    except BaseException:
        for linear in linears:
            _unconvert(linear)
        raise
    model.forward = _ForwardInRegion(model, group, vars(model).get("forward"))  # of somebody who replaced it


def _recipe_of(config: "_C.CudaGraphConfig") -> fp8.Recipe:
    word = "delayed" if config.fp8_recipe is None else config.fp8_recipe
    if word not in _SCALINGS:
        _refuse(f"fp8_recipe is {word}, which is not among the recipes of Pianola", f"known are {', '.join(_SCALINGS)}")
    delayed: Any = {}
    if word == "delayed":
        delayed = dict(
            margin=config.fp8_margin, amax_history_length=config.fp8_amax_history_len, amax_compute=config.fp8_amax_compute_algo
        )
    return fp8.Recipe(_SCALINGS[word], str(config.fp8), **delayed)


def _unconvert(linear: nn.Linear) -> None:
    linear.__class__ = nn.Linear
    for name in ("_place", "_state"):
        vars(linear).pop(name, None)
    linear._modules.pop("fp8_scales", None)


def _linears_of(layers: Sequence[Named], config: "_C.CudaGraphConfig", multiple: int) -> Iterator[nn.Linear]:
    start, end = (config.num_layers_at_start_in_bf16, config.num_layers_at_end_in_bf16) if config.first_last_layers_bf16 else (0, 0)
    for key, number in (("num_layers_at_start_in_bf16", start), ("num_layers_at_end_in_bf16", end)):
        if number < 0:
            _refuse(f"{key} is {number}", "give the number of layers that stay out of 8 bits, 0 or more")
    for _, layer in layers[start : max(start, len(layers) - end)]:
        of_experts = set(_of_experts(layer, config.moe_router_padding_for_fp8))
        for module in layer.modules():
            if type(module) is nn.Linear and module not in of_experts:
                if module.in_features % multiple == 0 and module.out_features % multiple == 0:
                    yield module


def _of_experts(layer: nn.Module, padded: bool) -> Iterator[nn.Module]:
    """What stays: the router, and experts that get as many tokens as were sent to them. A router that pads makes that multiples of 16."""
    for module in layer.modules():
        experts = experts_of(module)
        if experts is None:
            continue
        yield from (child for child in module.children() if child is not experts)
        if not padded:
            yield from experts.modules()


def _check_conversion(converted: dict[str, fp8.Float8Linear], wanted: fp8.Recipe, says_scaling: bool) -> None:
    """How long its history is, is the model's own affair: a checkpoint may have it."""
    for name, layer in converted.items():
        has = layer.recipe
        assert has is not None
        if has.format != wanted.format or (says_scaling and has.scaling != wanted.scaling):
            _refuse(
                f"the configuration says {wanted}, and layer '{name}' was made with {has}",
                "convert the model with the recipe of the configuration, or leave that to apply_config",
            )


class _ForwardInRegion:
    """The forward of a model, each call of it in a region. Does not hold the model, which holds it."""

    def __init__(self, model: nn.Module, group: Any, before: Any) -> None:
        self._model, self._group, self._before = weakref.ref(model), group, before
        self.__signature__ = inspect.signature(type(model).forward if before is None else before)
        if before is None:  # without `self`
            self.__signature__ = self.__signature__.replace(parameters=list(self.__signature__.parameters.values())[1:])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        model = self._owner()
        with fp8.autocast(group=self._group):
            return type(model).forward(model, *args, **kwargs) if self._before is None else self._before(*args, **kwargs)

    def _owner(self) -> nn.Module:
        model = self._model()
        assert model is not None, "the model of this forward is gone"
        return model

    def __deepcopy__(self, memo: dict[int, Any]) -> "_ForwardInRegion":
        return _ForwardInRegion(copy.deepcopy(self._owner(), memo), self._group, copy.deepcopy(self._before, memo))

    def __reduce__(self) -> Any:
        if self._group is not None:
            _refuse("a model whose fp8_group is a process group cannot be pickled", "save its state_dict()")
        return _ForwardInRegion, (self._owner(), None, self._before)


def _refuse(what: str, fix: str) -> None:
    refuse(what, fix, where="apply_config", kind="ConfigError")
