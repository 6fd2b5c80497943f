"""Transformer Engine's recipes, as options of `pianola.fp8.Recipe`. They are known by the names of their classes: it need not be there."""

from typing import Any, Callable

from ._errors import refuse

_WHERE = "fp8.Recipe"
_QUANTISATIONS = ("fp8_quant_fwd_inp", "fp8_quant_fwd_weight", "fp8_quant_bwd_grad")
_PRODUCTS = ("fp8_gemm_fprop", "fp8_gemm_dgrad", "fp8_gemm_wgrad")
_BLOCKS = ("x_block_scaling_dim", "w_block_scaling_dim", "grad_block_scaling_dim")

# What is computed otherwise than here, where it is said at all.
_OTHERWISE = ("fp8_dpa", "fp8_mha", "backward_override", "scaling_factor_compute_algo")

_UNKNOWN = {
    "MXFP8BlockScaling": "blocks of 32 want GPUs from compute capability 10.0 on",
    "NVFP4BlockScaling": "products in 4 bits want GPUs from compute capability 10.0 on",
    "CustomRecipe": "its quantizers are Transformer Engine's own",
}


def options_of(recipe: Any) -> dict[str, Any]:
    """What `fp8.Recipe` is made of.

    Raises:
        UnsupportedError: what it says is not computed here. UsageError: it is no recipe.
    """
    names = [one.__name__ for one in type(recipe).__mro__]
    for name in names:
        if name in _UNKNOWN:
            _refuse(name, _UNKNOWN[name])
        if name in _KNOWN:
            for attribute in _OTHERWISE:
                if getattr(recipe, attribute, None):
                    _refuse(f"{name}({attribute}={_word(getattr(recipe, attribute))})", "that is not computed here")
            return {"format": _format_of(recipe, name), **_KNOWN[name](recipe)}
    refuse(
        f"a recipe is a pianola.fp8.Recipe, or one of Transformer Engine's, got a {names[0]}",
        f"known are {', '.join(_KNOWN)}",
        where=_WHERE,
    )


def reduces_amaxes(recipe: Any) -> bool:
    """Whether amaxes are those of all ranks of the group, where there is one."""
    return bool(getattr(recipe, "reduce_amax", True))


def _delayed(recipe: Any) -> dict[str, Any]:
    compute = getattr(recipe, "amax_compute_algo", "max")
    if callable(compute):
        _refuse("DelayedScaling(amax_compute_algo=a function)", "no function runs in a graph's update of scales")
    if any(getattr(recipe, "override_linear_precision", ())):  # of earlier versions
        _refuse("DelayedScaling(override_linear_precision)", "all three products of a layer are in 8 bits")
    return dict(
        scaling="delayed",
        margin=getattr(recipe, "margin", 0),
        amax_history_length=getattr(recipe, "amax_history_len", 1024),
        amax_compute=compute,
        interval=getattr(recipe, "interval", 1),  # of earlier versions
    )


def _current(recipe: Any) -> dict[str, Any]:
    _check_products(recipe, "Float8CurrentScaling", (False, True, True))
    return dict(
        scaling="tensor",
        powers_of_two=_powers_of_two(recipe, "Float8CurrentScaling", getattr(recipe, "use_power_2_scales", None)),
    )


def _block(recipe: Any) -> dict[str, Any]:
    _check_products(recipe, "Float8BlockScaling", (True, True, True))
    blocks = tuple(getattr(recipe, name, usual) for name, usual in zip(_BLOCKS, (1, 2, 1)))
    if blocks != (1, 2, 1):
        _refuse(f"Float8BlockScaling with blocks of {blocks} dimensions", "inputs and gradients have 1 x 128, and weights 128 x 128")
    of_32_bits = getattr(recipe, "use_f32_scales", None)
    if not _powers_of_two(recipe, "Float8BlockScaling", None if of_32_bits is None else not of_32_bits):
        _refuse("Float8BlockScaling(use_f32_scales=True)", "scales of blocks are powers of two")
    return dict(scaling="block")


_KNOWN: dict[str, Callable[[Any], dict[str, Any]]] = {
    "DelayedScaling": _delayed,
    "Float8CurrentScaling": _current,
    "Float8BlockScaling": _block,
}


def _format_of(recipe: Any, name: str) -> str:
    usual = "E4M3" if name == "Float8BlockScaling" else "HYBRID"
    said = getattr(recipe, "fp8_format", usual)
    word = str(getattr(said, "name", said)).lower()
    if word not in ("hybrid", "e4m3"):
        _refuse(f"{name}(fp8_format={_word(said)})", "inputs and weights are e4m3")
    return word


def _powers_of_two(recipe: Any, name: str, said: Any) -> bool:
    """Transformer Engine computes with what the three say, and its own constructor leaves them at the default."""
    each = [getattr(recipe, attribute) for attribute in _QUANTISATIONS if hasattr(recipe, attribute)]
    if any(getattr(one, "amax_epsilon", 0) for one in each):
        _refuse(f"{name} with an amax_epsilon", "an amax is what it is")
    all_say = {bool(one.power_2_scale) for one in each} | (set() if said is None else {bool(said)})
    if len(all_say) > 1:
        _refuse(f"{name} whose power_2_scale differs between its QParams and itself", "all scales are rounded alike")
    return all_say.pop() if all_say else name == "Float8BlockScaling"


def _check_products(recipe: Any, name: str, split: tuple[bool, ...]) -> None:
    for attribute, usual in zip(_PRODUCTS, split):
        said = getattr(getattr(recipe, attribute, None), "use_split_accumulator", usual)
        if said != usual:
            _refuse(f"{name} whose {attribute} has use_split_accumulator={said}", f"that product has {usual}")


def _word(value: Any) -> str:
    return getattr(value, "name", None) or repr(value)


def _refuse(what: str, why: str) -> None:
    refuse(
        f"{what} is not among the recipes of Pianola: {why}",
        "take pianola.fp8.Recipe, whose scaling is 'delayed', 'tensor', 'row' or 'block'",
        where=_WHERE,
        kind="UnsupportedError",
    )
