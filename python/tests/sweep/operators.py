"""Which operators the sweep tries, and how it calls them."""

import functools

import torch

from samples import full_name


def _is_tensor(argument):
    return "Tensor" in str(argument.type)


def _has_out(schema):
    return any(argument.is_out for argument in schema.arguments)


@functools.lru_cache(maxsize=None)
def _aten():
    return [schema for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("aten::")]


def _has_kernel(schema, device):
    try:
        key = "CUDA" if device == "cuda" else "CPU"
        return torch._C._dispatch_has_computed_kernel_for_dispatch_key(full_name(schema), key)
    except RuntimeError:  # TorchScript's own: no operator of the dispatcher
        return False


def runs_on(schema, device):
    """Whether there is a kernel for dense tensors of the device: of the variant with out, often made by a generator, and of
    the operator that it calls."""
    if not _has_kernel(schema, device):
        return False
    functional = functional_of(schema) if _has_out(schema) else None
    return functional is None or _has_kernel(functional, device)


# torch's own uses of private operators that take any tensors of the device.
_SAFE_PRIVATE = ("_foreach_", "_fused_", "_amp_", "_index_put_impl_", "__")
# Of a library: they trust what torch hands them, and the samples are not made for the library of the device.
_OF_LIBRARIES = ("cudnn_", "miopen_", "mkldnn_", "fbgemm_", "mps_", "quantized_")


def why_left_out(schema, device):
    """Why an operator is not tried on CUDA, where a bad argument ends the process or breaks the device for all that follow;
    "" where it is tried. (_sobol_engine_* write the tensor's memory from the host, whatever its device.)"""
    name = schema.name.split("::")[1]
    if device != "cuda":
        return ""
    if name.startswith("_") and not name.startswith(_SAFE_PRIVATE):
        return "private"
    if (name, schema.overload_name) == ("range", "out_"):
        return "a segmentation fault in eager torch 2.11"
    return "of a library" if name.startswith(_OF_LIBRARIES) else ""


def in_place_schemas(device="cpu"):
    """Operators that write their first argument, one tensor or a list of them, and nothing that is called out."""
    return [
        schema
        for schema in _aten()
        if schema.arguments
        and _is_tensor(schema.arguments[0])
        and schema.arguments[0].alias_info is not None
        and schema.arguments[0].alias_info.is_write
        and not _has_out(schema)
        and schema.name.endswith("_")
        and runs_on(schema, device)
    ]


def out_schemas(device="cpu"):
    return [schema for schema in _aten() if _has_out(schema) and runs_on(schema, device)]


def all_schemas(device="cpu"):
    return in_place_schemas(device) + out_schemas(device)


def takes_names(schema):
    return any(argument.name == "dim" and "str" in str(argument.type) for argument in schema.arguments)


def call(schema, positional, keywords, out=None):
    """Calls this overload. The way to those that take named dimensions is torch's functions alone, which tell by the types."""
    name = schema.name.split("::")[1]
    if not takes_names(schema):
        return getattr(getattr(torch.ops.aten, name), schema.overload_name or "default")(*positional, **keywords, **(out or {}))
    if out is None and name.endswith("_"):
        return getattr(positional[0], name)(*positional[1:], **keywords)
    given = {} if out is None else {"out": next(iter(out.values())) if len(out) == 1 else tuple(out.values())}
    return getattr(torch, name)(*positional, **keywords, **given)


def _signature(schema):
    return [(argument.name, str(argument.type)) for argument in schema.arguments if not argument.is_out]


@functools.lru_cache(maxsize=None)
def _by_name():
    table = {}
    for schema in _aten():
        table.setdefault(schema.name, []).append(schema)
    return table


def functional_of(schema):
    """The operator that returns what this one writes into out; None where there is none."""
    wanted = _signature(schema)
    for candidate in _by_name()[schema.name]:
        if not _has_out(candidate) and _signature(candidate) == wanted:
            return candidate
    return None


def _blank(tensor):
    return torch.empty_like(tensor.rename(None) if getattr(tensor, "has_names", bool)() else tensor)


def blank_out(schema, sample, seed, device):
    """Tensors for out, as the operator wants them: like what its functional variant returns."""
    names = [(argument.name, "List" in str(argument.type)) for argument in schema.arguments if argument.is_out]
    functional = functional_of(schema)
    if functional is None:
        out = {name: sample.blank(name, device) for name, _ in names}
        call(schema, *sample.arguments(seed, device), out)  # makes room
        return out
    results = call(functional, *sample.arguments(seed, device))
    if isinstance(results, torch.Tensor) or (names[0][1] and isinstance(results, list)):
        results = [results]
    return {name: torch.utils._pytree.tree_map(_blank, result) for (name, _), result in zip(names, results)}


def run_plain(schema, sample, seed, device):
    """Calls an operator once, without gradients; what it wrote."""
    positional, keywords = sample.arguments(seed, device)
    if not _has_out(schema):
        call(schema, positional, keywords)
        return positional[0]
    out = blank_out(schema, sample, seed, device)
    call(schema, positional, keywords, out)
    return list(out.values())
