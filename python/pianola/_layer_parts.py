"""The parts of layers that a configuration names: attn, mlp, moe, moe_router, moe_preprocess, mamba."""

import difflib
import re
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence

from torch import nn

from ._errors import refuse
from ._find_layers import Named, find_layers

Rule = Callable[[str, nn.Module], bool]  # by the last component of the name, and the module


def experts_of(module: nn.Module) -> Optional[nn.Module]:
    """Of a layer of experts."""
    return next((child for name, child in module.named_children() if name in ("experts", "local_experts")), None)


def _is_moe(module: nn.Module) -> bool:
    return experts_of(module) is not None


def _rule(names: str, classes: str, of_experts: bool = False) -> Rule:
    by_name, by_class = re.compile(names), re.compile(classes)

    def matches(name: str, module: nn.Module) -> bool:
        if _is_moe(module) != of_experts:
            return False
        return by_name.fullmatch(name) is not None or by_class.search(type(module).__name__) is not None

    return matches


# What Megatron-core, transformers, timm and torchvision call them.
_RULES: dict[str, Rule] = {
    "attn": _rule(r"(self_|cross_|inter_)?(attn|attention)|encoder_attn", r"Attention(?!.*(Output|Norm))"),
    "mlp": _rule(r"mlp|ffn?|feed_?forward", r"(?i)(mlp|feedforward|ffn)$"),
    "moe": lambda name, module: _is_moe(module),
    "mamba": _rule(r"mamba|ssm|mixer", r"Mamba"),
}
_ROUTER = re.compile(r"router|gate")


_SCOPES = (*_RULES, "moe_router", "moe_preprocess")


def check_parts(parts: Mapping[str, Any]) -> None:
    """
    Raises:
        ConfigError: one is no scope.
    """
    for scope in parts:
        if scope not in _SCOPES:
            near = difflib.get_close_matches(scope, _SCOPES, n=1)
            refuse(
                f"parts names '{scope}', which is no scope" + (f"; '{near[0]}' is near" if near else ""),
                f"scopes are {', '.join(_SCOPES)}",
                where="apply_config",
                kind="ConfigError",
            )


def find_parts(
    model: nn.Module, layers: Sequence[Named], scopes: Sequence[str], parts: Mapping[str, Any]
) -> list[Named]:
    """What these scopes are in the layers, in the order of the model.

    parts: scope -> what find_layers() takes, of the whole model; before any rule of ours.
    """
    found: dict[str, nn.Module] = {}
    for scope in scopes:
        if scope in parts:
            of_scope = find_layers(model, parts[scope])
        else:
            of_scope = [part for name, layer in layers for part in _parts_of(name, layer, scope)]
        if not of_scope:
            refuse(
                f"the scope {scope} names no part of {type(model).__name__}: none of its {len(layers)} layers, such as "
                f"{layers[0][0]} ({type(layers[0][1]).__name__}), has a module that looks like one",
                f'say which it is: parts={{"{scope}": "layers.*.name"}}, with a name, a class or a function of name and module',
                where="apply_config",
                kind="ConfigError",
            )
        found.update(of_scope)
    order = {name: place for place, (name, _) in enumerate(model.named_modules(remove_duplicate=False))}
    return sorted(found.items(), key=lambda part: order[part[0]])


def _parts_of(name: str, layer: nn.Module, scope: str) -> Iterator[Named]:
    if scope == "moe_router":
        for moe_name, moe in _outermost(name, layer, _RULES["moe"]):
            yield from ((f"{moe_name}.{key}", child) for key, child in moe.named_children() if _ROUTER.fullmatch(key))
    elif scope in _RULES:
        yield from _outermost(name, layer, _RULES[scope])


def _outermost(name: str, module: nn.Module, rule: Rule) -> Iterator[Named]:
    if rule(name.rpartition(".")[2], module):
        yield name, module
        return
    if not _is_moe(module):  # experts are called with as many tokens as come
        for key, child in module.named_children():
            yield from _outermost(f"{name}.{key}", child, rule)
