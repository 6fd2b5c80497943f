"""Arguments for torch's operators, made from their schemas.

What an argument is like follows from its name and type, and from a profile, which says what shape the tensors have; some
operators want something of their own (OWN). Which profile an operator takes is looked up in sample_profiles.txt;
find_profiles.py writes that file, by trying.
"""

from dataclasses import dataclass, replace
from typing import Any, Optional

import torch


@dataclass(frozen=True)
class T:
    """A tensor to be made: of numbers between low and high, other ones for each seed unless it is constant."""

    shape: tuple
    kind: str = "float"
    low: float = 0.1
    high: float = 0.9
    values: Optional[tuple] = None  # these, whatever the seed
    names: Optional[tuple] = None
    on_host: bool = False  # wherever the others are

    def make(self, seed, device):
        plain = self._plain(seed, "cpu" if self.on_host else device)
        return plain if self.names is None else plain.rename(*self.names)

    def _plain(self, seed, device):
        if self.values is not None:
            return torch.tensor(self.values, dtype=DTYPES.get(self.kind, torch.float32), device=device)
        generator = torch.Generator().manual_seed(seed)
        uniform = torch.rand(self.shape, generator=generator, dtype=torch.float64) * (self.high - self.low) + self.low
        if self.kind == "positive definite":
            square = uniform @ uniform.mT + torch.eye(self.shape[-1], dtype=torch.float64)
            return square.to(torch.float32).to(device)
        if self.kind == "triangular":
            return (uniform.tril() + torch.eye(self.shape[-1])).to(torch.float32).to(device)
        if self.kind == "complex":
            imaginary = torch.rand(self.shape, generator=generator, dtype=torch.float64) - 0.5
            return torch.complex(uniform, imaginary).to(torch.complex64).to(device)
        if self.kind == "bool":
            return (uniform > (self.high + self.low) / 2).to(device)
        if self.kind == "sorted":
            return uniform.sort().values.to(torch.float32).to(device)
        if self.kind == "permutation":
            return torch.randperm(self.shape[0], generator=generator).to(device)
        if self.kind in ("int", "int32", "uint8", "int8"):
            return torch.randint(int(self.low), int(self.high), self.shape, generator=generator).to(DTYPES[self.kind]).to(device)
        return uniform.to(DTYPES[self.kind]).to(device)


DTYPES = {
    "float": torch.float32,
    "double": torch.float64,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "int": torch.int64,
    "int32": torch.int32,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
}


def F(*shape, low=0.1, high=0.9):
    return T(shape, "float", low, high)


def I(*shape, low=0, high=4, kind="int"):
    return T(shape, kind, low, high)


def B(*shape):
    return T(shape, "bool")


def V(*values, kind="float"):
    return T((len(values),), kind, values=values)


@dataclass(frozen=True)
class Profile:
    """What tensors are like where nothing else says so."""

    shape: tuple
    kind: str = "float"
    low: float = 0.1
    high: float = 0.9
    spatial: int = 2  # dimensions of windows
    scalar: Any = 0.5

    @property
    def tensor(self):
        return T(self.shape, self.kind, self.low, self.high)


PROFILES = {
    "matrix": Profile((4, 4)),
    "vector": Profile((4,), spatial=1),
    "batch": Profile((2, 4, 4), spatial=1),
    "image": Profile((2, 4, 6, 6)),
    "volume": Profile((2, 2, 6, 6, 6), spatial=3),
    "integers": Profile((4, 4), "int", 1, 5, scalar=2),
    "flags": Profile((4, 4), "bool", scalar=1),
    "complex": Profile((4, 4), "complex"),
    "large": Profile((4, 4), low=1.1, high=3.0, scalar=2),
    "one": Profile((), spatial=1),
    "pairs": Profile((4, 4, 2), spatial=1),
    "halves": Profile((4, 4), "half"),
    "definite": Profile((4, 4), "positive definite"),
    "triangular": Profile((4, 4), "triangular"),
    "permuted": Profile((4,), "permutation", scalar=2),
}

# By name of the argument: how many entries a window has is the profile's.
NUMBERS = {
    "dim": 0, "dim0": 0, "dim1": 0, "dim2": 1, "axis0": 0, "axis1": 1, "k": 2, "n": 2, "groups": 1, "group": 1, "p": 2,
    "eps": 1e-5, "momentum": 0.1, "num_layers": 1, "hidden_size": 4, "input_size": 4, "proj_size": 0, "steps": 4,
    "window_length": 5, "high": 5, "low": 1, "num_samples": 2, "start": 0, "end": 3, "step": 1, "std": 1.0, "mean": 0.0,
    "quant_min": 0, "quant_max": 255, "scale": 0.1, "zero_point": 1, "ignore_index": -100, "offset": 0, "axis": 0,
    "padding_idx": -1, "norm_deg": 1.0, "dimension": 2, "repeats": 2, "sections": 2, "chunks": 2, "split_size": 2,
    "upscale_factor": 2, "downscale_factor": 2, "decimals": 1, "diagonal": 0, "level": 0, "correction": 1, "ord": 2,
    "maxnorm": 0.5, "max_norm": 0.5, "norm_type": 2.0, "N": 2, "C": 4, "HxW": 36, "H": 4, "W": 4, "bins": 4, "m": 3,
    "threshold": 0.3, "lambd": 0.3, "lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.01, "reduction": 1,
    "interpolation_mode": 0, "padding_mode": 0, "blank": 0, "fill_value": 2, "min_val": -0.3, "max_val": 0.3, "s": 2,
    "negative_slope": 0.1, "alpha": 1, "beta": 1, "scale_growth_factor": 2.0, "scale_backoff_factor": 0.5, "nfft": 4,
    "growth_interval": 2, "dropout": 0.0, "storage_offset": 0, "out_dtype": torch.float32, "row": 4, "col": 4,
    "lower": 0.1, "upper": 0.3, "from": 0, "to": 5, "num_heads": 2, "num_head": 2, "embed_dim": 4, "size": 2,
    "last_dim_size": 6, "normalization": 0, "base": 10.0, "q": 0.5, "sparse_dim": 1, "dense_dim": 0, "index": 1,
    "unroll_dim": 1, "num_weights": 4, "exponential_average_factor": 0.1, "epsilon": 1e-5, "length": 4, "swizzle": 0,
    "averaging_const": 0.01, "ch_axis": 0, "count": 8, "tol": 0.1, "rcond": 1e-5, "dtype": torch.float32, "mode": 0,
    "lr_decay": 0.1, "dampening": 0.0, "nesterov": False, "median": 0.0, "sigma": 1.0, "delta": 1.0, "margin": 1.0,
}  # fmt: skip
TEXTS = {
    "reduce": "sum", "mode": "reduced", "rounding_mode": "trunc", "indexing": "ij", "interpolation": "linear",
    "approximate": "none", "UPLO": "L", "equation": "ij,jk->ik", "driver": "gels", "side": "left", "ord": "fro",
    "padding": "same", "norm": None,
}  # fmt: skip
TENSORS = {
    "mask": lambda p: T(p.shape, "bool"), "condition": lambda p: T(p.shape, "bool"), "other_mask": lambda p: T(p.shape, "bool"),
    "index": lambda p: T(p.shape, "int", 0, 2), "indices": lambda p: T(p.shape, "int", 0, 2),
    "running_mean": lambda p: F(p.shape[1] if len(p.shape) > 1 else 4),
    "running_var": lambda p: F(p.shape[1] if len(p.shape) > 1 else 4, low=0.5),
    "found_inf": lambda p: V(0.0), "inv_scale": lambda p: F(1), "growth_tracker": lambda p: V(1, kind="int32"),
}  # fmt: skip


def _bare(type_text):
    return type_text[len("Optional[") : -1] if type_text.startswith("Optional[") else type_text


def _window(name, spatial):
    return {"stride": [1], "padding": [0], "dilation": [1], "kernel_size": [2], "output_size": [3], "output_padding": [0]}[
        name
    ] * spatial


def spec_of(argument, profile):
    """What stands for an argument that neither has a default nor a word of its operator's."""
    text = str(argument.type)
    kind, name = _bare(text), argument.name
    if kind == "Tensor":
        return TENSORS[name](profile) if name in TENSORS else profile.tensor
    if kind == "List[Tensor]":
        return [profile.tensor, profile.tensor]
    if "str" in kind and name == "dim":
        return ["N"] if "List" in kind else "N"
    if kind == "List[Optional[Tensor]]":
        return [I(4)]
    if kind == "Generator" or (text != kind and name not in ("dtype", "size", "dim", "ord", "norm")):
        return None
    if kind == "bool":
        return name in ("train", "training", "batch_first", "has_biases", "forward", "onesided", "compute_uv", "some", "sorted")
    if kind == "number":
        return NUMBERS.get(name, profile.scalar) if name not in ("other", "exponent", "end") else profile.scalar
    if kind == "float" and name == "p":
        return 0.5
    if kind == "float":
        return float(NUMBERS.get(name, 0.5)) if not isinstance(NUMBERS.get(name), torch.dtype) else 0.5
    if kind == "int":
        return NUMBERS.get(name, 1)
    if kind == "str":
        return TEXTS.get(name, "sum")
    if kind == "List[int]":
        if name in ("stride", "padding", "dilation", "kernel_size", "output_size", "output_padding"):
            return _window(name, profile.spatial)
        if name in ("size", "shape", "input_size", "input_sizes", "self_size", "sizes"):
            return list(profile.shape)
        if name == "normalized_shape":
            return [profile.shape[-1]]
        return {"dim": [0], "dims": [0], "shifts": [1], "repeats": [2] * len(profile.shape), "pad": [1, 1], "axes": [0]}.get(
            name, [1]
        )
    if kind == "List[bool]":
        return [True, True, True]
    if kind == "List[number]":
        return [profile.scalar, profile.scalar]
    if kind == "List[float]":
        return [0.5]
    if kind == "Device":
        return "device"
    raise LookupError(f"{name}: {text}")


def make(spec, seed, device):
    """A spec's value: tensors are made, lists of them too, each of a seed of its own; all else is what it is."""
    if isinstance(spec, T):
        return spec.make(seed, device)
    if isinstance(spec, list):
        return [make(entry, seed + 17 * (i + 1), device) for i, entry in enumerate(spec)]
    return device if isinstance(spec, str) and spec == "device" else spec


class Sample:
    """The arguments of one operator, for any seed: positional ones and keywords."""

    def __init__(self, schema, specs):
        self.schema, self.specs = schema, specs

    def blank(self, name, device):
        """What is given as out where no functional variant says what it is like."""
        return make(self.specs[name], 1, device) if name in self.specs else torch.empty(0, device=device)

    def arguments(self, seed, device):
        positional, keywords = [], {}
        for i, argument in enumerate(self.schema.arguments):
            if argument.is_out or argument.name not in self.specs:
                continue
            value = make(self.specs[argument.name], 1000 * seed + 31 * i, device)
            if argument.kwarg_only:
                keywords[argument.name] = value
            else:
                positional.append(value)
        return positional, keywords


def full_name(schema):
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name


def with_names(spec):
    if isinstance(spec, list):
        return [with_names(entry) for entry in spec]
    return replace(spec, names=("N", "C", "H", "W", "D")[: len(spec.shape)])


def sample_of(schema, profile_name, own):
    """The sample of an operator with a profile; `own` has specs for some of its arguments."""
    profile = PROFILES[profile_name]
    named = any(argument.name == "dim" and "str" in str(argument.type) for argument in schema.arguments)
    words = dict(own.get(schema.name.split("::")[1], {}))
    words.update(own.get(full_name(schema).split("::")[1], {}))
    specs = {}
    for argument in schema.arguments:
        if argument.is_out and argument.name not in words:
            continue
        if argument.name in words:
            specs[argument.name] = words[argument.name]
        elif argument.has_default_value():
            specs[argument.name] = argument.default_value
        else:
            specs[argument.name] = spec_of(argument, profile)
        if named and argument.name in ("self", "tensors"):
            specs[argument.name] = with_names(specs[argument.name])
    return Sample(schema, specs)
