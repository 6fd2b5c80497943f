"""`pianola.apply_config`: a configuration of CUDA graphs, as Megatron-LM and Megatron-Bridge write it, on any model."""

import os
from typing import TYPE_CHECKING, Any, Mapping, Union

from torch import nn

from . import fp8
from ._errors import refuse
from ._find_layers import Which, check_model, find_layers
from ._layer_parts import check_parts, find_parts
from ._layers import GraphedLayers, graph_layers
from ._load import _C

if TYPE_CHECKING:
    from ._options import GraphedOptions, Unpack


def apply_config(
    model: nn.Module,
    config: Union["_C.CudaGraphConfig", str, "os.PathLike[str]"],
    *,
    layers: Which = None,
    parts: Mapping[str, Any] = {},
    **options: "Unpack[GraphedOptions]",
) -> GraphedLayers:
    """Graphs what a configuration says: whole layers of a model, or parts of them. The training loop stays as it is.

        config = pianola.CudaGraphConfig(cuda_graph_impl="local", cuda_graph_modules=["attn", "mlp"])
        graphed = pianola.apply_config(model, config)

    The configuration is checked first, as by `check_config`; what that fixes is fixed. Then these keys act: `cuda_graph_impl` ("none":
    nothing is graphed; "local" and "transformer_engine": layers, captured after they have warmed up), `cuda_graph_modules` (parts of
    layers; none: whole layers), `cuda_graph_warmup_steps`, `cuda_graph_retain_backward_graph`, `delay_wgrad_compute` (call `backward_dw()` of
    what comes back after each backward). `fp8` and `fp8_recipe` convert nothing: the model's layers have to compute so already
    (`pianola.fp8.convert`), in regions that the loop opens.

    Args:
        model: patched in place, as by `graph_layers`.
        config: or the path of a JSON or YAML file.
        layers: which modules are its layers, as for `graph_layers`.
        parts: which modules a name of `cuda_graph_modules` means: name -> as `layers`. Without, they are found by the names and
            classes that Megatron-core, transformers, timm and torchvision have. A MoE layer is a module with a child `experts`.
        options: as for `graph_layers`, in place of what the configuration says.

    Raises:
        ConfigError: the configuration has errors, names a part that no layer has, is for full iterations, or wants other products in 8
            bits than the model has.
        UsageError: as `graph_layers`.
    """
    check_model(model, "apply_config")
    check_parts(parts)
    if not isinstance(config, _C.CudaGraphConfig):
        config = _C.load_config(os.fspath(config))
    _C.require_valid(config)
    config = _C.check_config(config).config
    _check_quantisation(model, config)
    if config.cuda_graph_impl == "none":
        return GraphedLayers({})
    if config.cuda_graph_impl == "full_iteration":
        refuse(
            "cuda_graph_impl is full_iteration, which graphs a step and not a model",
            "write pianola.FullIteration(step, config=config), and call that in place of the step",
            where="apply_config",
            kind="ConfigError",
        )
    settings: Any = {
        "warmup": max(config.cuda_graph_warmup_steps, 1),
        "retain_graph": config.cuda_graph_retain_backward_graph,
        "delay_weight_gradients": config.delay_wgrad_compute,
        **options,
    }
    found = find_layers(model, layers)
    if config.cuda_graph_modules:
        found = find_parts(model, found, config.cuda_graph_modules, parts)
    return graph_layers(model, [module for _, module in found], **settings)


# Megatron-LM's words for a Recipe's scaling.
_SCALINGS = {"delayed": "delayed", "tensorwise": "tensor", "blockwise": "block"}


def _check_quantisation(model: nn.Module, config: "_C.CudaGraphConfig") -> None:
    """A model computes as it was made: a configuration that says otherwise would be taken for what it does not do."""
    if config.fp4:
        _refuse(f"fp4 is {config.fp4}, and Pianola has no products in 4 bits", "leave it out")
    if not config.fp8:
        return
    if config.fp8_recipe is not None and config.fp8_recipe not in _SCALINGS:
        _refuse(f"fp8_recipe is {config.fp8_recipe}, which is not among the recipes of Pianola", f"known are {', '.join(_SCALINGS)}")
    layers = {name: one for name, one in model.named_modules() if isinstance(one, fp8.Float8Linear) and one.recipe is not None}
    if not layers:
        _refuse(
            f"fp8 is {config.fp8}, and the model has no layer that computes in 8 bits",
            "call pianola.fp8.convert(model) before, and open pianola.fp8.autocast() in the step; or leave fp8 out",
        )
    for name, layer in layers.items():
        recipe = layer.recipe
        assert recipe is not None
        said = [
            ("fp8", config.fp8, recipe.format, config.fp8),
            ("fp8_recipe", config.fp8_recipe, recipe.scaling, _SCALINGS.get(config.fp8_recipe or "")),
        ]
        for key, word, has, wanted in said:
            if word is not None and has != wanted:
                _refuse(
                    f"{key} is {word}, and layer '{name}' was made with {recipe}",
                    "convert the model with the recipe of the configuration",
                )


def _refuse(what: str, fix: str) -> None:
    refuse(what, fix, where="apply_config", kind="ConfigError")
