"""`pianola.apply_config`: a configuration of CUDA graphs, as Megatron-LM and Megatron-Bridge write it, on any model."""

import os
from typing import TYPE_CHECKING, Any, Mapping, Union

from torch import nn

from ._config_fp8 import in_fp8
from ._errors import refuse
from ._find_layers import Named, Which, check_model, find_layers
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
    fp8_group: Any = None,
    **options: "Unpack[GraphedOptions]",
) -> GraphedLayers:
    """Graphs what a configuration says: whole layers of a model, or parts of them. The training loop stays as it is.

        config = pianola.CudaGraphConfig(cuda_graph_impl="local", cuda_graph_modules=["attn", "mlp"])
        graphed = pianola.apply_config(model, config)

    The configuration is checked first, as by `check_config`; what that fixes is fixed. Then these keys act: `cuda_graph_impl` ("none":
    nothing is graphed; "local" and "transformer_engine": layers, captured after they have warmed up), `cuda_graph_modules` (parts of
    layers; none: whole layers), `cuda_graph_warmup_steps`, `cuda_graph_retain_backward_graph`, `delay_wgrad_compute` (call `backward_dw()` of
    what comes back after each backward). With `fp8` (`fp8_recipe`, `fp8_margin`, `fp8_amax_history_len`, `fp8_amax_compute_algo`) the
    linear layers inside of the model's layers are converted, as by `pianola.fp8.convert`, and each call of the model is in a region
    of it; with `first_last_layers_bf16` the first and last layers stay out. Experts are left alone without `moe_router_padding_for_fp8`.
    Of a model that was converted before, the loop opens the regions.

    Args:
        model: patched in place, as by `graph_layers`.
        config: or the path of a JSON or YAML file.
        layers: which modules are its layers, as for `graph_layers`.
        parts: which modules a name of `cuda_graph_modules` means: name -> as `layers`. Without, they are found by the names and
            classes that Megatron-core, transformers, timm and torchvision have. A MoE layer is a module with a child `experts`.
        fp8_group: process group over whose ranks the largest magnitudes are taken, as for `pianola.fp8.autocast`.
        options: as for `graph_layers`, in place of what the configuration says.

    Raises:
        ConfigError: the configuration has errors, names a part that no layer has, is for full iterations, or wants products that are not
            computed here or that a converted model has not.
        UsageError: as `graph_layers`.
    """
    check_model(model, "apply_config")
    check_parts(parts)
    if not isinstance(config, _C.CudaGraphConfig):
        config = _C.load_config(os.fspath(config))
    _C.require_valid(config)
    config = _C.check_config(config).config
    if config.cuda_graph_impl == "full_iteration":
        refuse(
            "cuda_graph_impl is full_iteration, which graphs a step and not a model",
            "write pianola.FullIteration(step, config=config), and call that in place of the step",
            where="apply_config",
            kind="ConfigError",
        )
    found = find_layers(model, layers) if config.fp8 or config.cuda_graph_impl != "none" else []
    with in_fp8(model, found, config, fp8_group):
        return _graph(model, found, config, parts, options)


def _graph(model: nn.Module, layers: list[Named], config: "_C.CudaGraphConfig", parts: Mapping[str, Any], options: Any) -> GraphedLayers:
    if config.cuda_graph_impl == "none":
        return GraphedLayers({})
    settings: Any = {
        "warmup": max(config.cuda_graph_warmup_steps, 1),
        "retain_graph": config.cuda_graph_retain_backward_graph,
        "delay_weight_gradients": config.delay_wgrad_compute,
        **options,
    }
    if config.cuda_graph_modules:
        layers = find_parts(model, layers, config.cuda_graph_modules, parts)
    return graph_layers(model, [module for _, module in layers], **settings)
