"""`pianola.apply_config`: a configuration of CUDA graphs, as Megatron-LM and Megatron-Bridge write it, on any model."""

import os
from typing import TYPE_CHECKING, Any, Mapping, Union

from torch import nn

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
    what comes back after each backward).

    Args:
        model: patched in place, as by `graph_layers`.
        config: or the path of a JSON or YAML file.
        layers: which modules are its layers, as for `graph_layers`.
        parts: which modules a name of `cuda_graph_modules` means: name -> as `layers`. Without, they are found by the names and
            classes that Megatron-core, transformers, timm and torchvision have. A MoE layer is a module with a child `experts`.
        options: as for `graph_layers`, in place of what the configuration says.

    Raises:
        ConfigError: the configuration has errors, names a part that no layer has, or is for full iterations.
        UsageError: as `graph_layers`.
    """
    check_model(model, "apply_config")
    check_parts(parts)
    if not isinstance(config, _C.CudaGraphConfig):
        config = _C.load_config(os.fspath(config))
    _C.require_valid(config)
    config = _C.check_config(config).config
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
