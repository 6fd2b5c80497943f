"""Every operator that works in place or writes into out, and layers whose kernels do: graph against eager, bit for bit.

The operators come from torch's own list of schemas; what they are given, from samples.py. A case is right, refused by name,
or wrong, and nothing may be wrong. On CUDA operators that may end the process are left out; the summary names them.
"""

import functools
import pathlib

import operators
import pytest
import samples
import torch
from own_samples import OWN
from sweep import ROUNDS, Case, Tally, is_tensor, judge, quiet, tree_tensors

PROFILES = dict(
    line.split() for line in pathlib.Path(__file__).with_name("sample_profiles.txt").read_text().splitlines()
)


def sample_for(name, schema):
    return samples.sample_of(schema, PROFILES[name], OWN) if name in PROFILES else None


def differentiable(value):
    return is_tensor(value) and (value.is_floating_point() or value.is_complex()) and not value.is_quantized


def gradients_of(results, leaves):
    loss = sum((result * result.detach().cos()).sum() for result in results if result.requires_grad)
    if not is_tensor(loss) or not leaves:
        return []
    loss = loss.real if loss.is_complex() else loss
    return list(torch.autograd.grad(loss, leaves, allow_unused=True))


# ---- in place ----


def in_place_case(schema, sample, device, viewed, graded):
    """The first argument is the result of an operation on a leaf, or a view of one; `graded` says who is differentiated:
    "all", "self" or "none"."""

    def base_of(value):
        value = torch.stack([value, value]) if viewed else value
        return value.requires_grad_(graded != "none" and differentiable(value))

    def values(seed):
        positional, keywords = sample.arguments(seed, device)
        changed, *others = positional
        changed = [base_of(value) for value in changed] if isinstance(changed, list) else base_of(changed)
        if graded == "all":
            written = {argument.name for argument in schema.arguments if argument.alias_info and argument.alias_info.is_write}
            names = [argument.name for argument in schema.arguments if not argument.kwarg_only][1:]
            for name, value in zip(names, others):
                if name not in written:
                    for tensor in tree_tensors(value):
                        tensor.requires_grad_(differentiable(tensor))
        return [changed, others, keywords]

    def step(given):
        changed, others, keywords = given
        bases = [value * 1 if differentiable(value) else value.clone() for value in tree_tensors(changed)]
        targets = [base[1] for base in bases] if viewed else bases
        operators.call(schema, [targets if isinstance(changed, list) else targets[0], *others], keywords)
        leaves = [tensor for tensor in tree_tensors(given) if tensor.requires_grad]
        return [base.detach() for base in bases] + gradients_of(bases, leaves)

    return Case(samples.full_name(schema), values, step)


def runs(case):
    try:
        for seed in (1, *ROUNDS):
            case.step(case.values(seed))
    except Exception:
        return False
    return True


def sweep_in_place(device, viewed):
    tally = Tally("in place on a view" if viewed else "in place", device)
    for schema in operators.in_place_schemas(device.type):
        name = samples.full_name(schema)
        if why := operators.why_left_out(schema, device.type):
            tally.add(name, "left out", why)
            continue
        tally.begin(name)
        sample = sample_for(name, schema)
        cases = (in_place_case(schema, sample, device, viewed, graded) for graded in ("all", "self", "none"))
        case = next((case for case in cases if sample is not None and runs(case)), None)
        tally.add(name, *(judge(case, device) if case else ("no sample", "")))
    return tally


# ---- out ----


def out_case(schema, sample, device):
    def values(seed):
        positional, keywords = sample.arguments(seed, device)
        out = operators.blank_out(schema, sample, 1, device)
        operators.call(schema, *sample.arguments(1, device), out)  # some give it another shape than they return
        for tensor in tree_tensors(out):
            if tensor.layout == torch.strided and not tensor.is_quantized:
                tensor.zero_()  # what the operator does not write must not differ either
        return [positional, keywords, out]

    def step(given):
        positional, keywords, out = given
        operators.call(schema, positional, keywords, out)
        return tree_tensors(out)

    return Case(samples.full_name(schema), values, step)


def sweep_out(device):
    tally = Tally("into out", device)
    for schema in operators.out_schemas(device.type):
        name = samples.full_name(schema)
        if why := operators.why_left_out(schema, device.type):
            tally.add(name, "left out", why)
            continue
        tally.begin(name)
        sample = sample_for(name, schema)
        case = out_case(schema, sample, device) if sample is not None else None
        tally.add(name, *(judge(case, device) if case is not None and runs(case) else ("no sample", "")))
    return tally


# ---- layers ----

ACTIVATIONS = {
    "ReLU": {}, "ReLU6": {}, "SiLU": {}, "Hardswish": {}, "Mish": {}, "Hardtanh": {}, "Hardsigmoid": {}, "ELU": {}, "CELU": {},
    "SELU": {}, "LeakyReLU": {}, "RReLU": {}, "Threshold": {"threshold": 0.1, "value": 0.2}, "Dropout": {}, "AlphaDropout": {},
    "Dropout1d": {}, "FeatureAlphaDropout": {},
}  # fmt: skip
RECURRENT = {
    f"{kind} {text}": (kind, options)
    for kind in ("RNN", "LSTM", "GRU")
    for text, options in {
        "plain": {}, "batch first": {"batch_first": True}, "two layers": {"num_layers": 2},
        "both ways": {"bidirectional": True}, "without bias": {"bias": False}, "dropout": {"num_layers": 2, "dropout": 0.3},
    }.items()
}  # fmt: skip


def module_case(name, make, device, shape=(3, 2, 4)):
    torch.manual_seed(0)
    module = make().to(device)
    parameters = [parameter.detach().clone() for parameter in module.parameters()]
    names = [key for key, _ in module.named_parameters()]

    def values(seed):
        generator = torch.Generator().manual_seed(seed)
        moved = [p + 0.1 * seed for p in parameters]
        x = torch.randn(shape, generator=generator).to(device)
        return [tensor.requires_grad_() for tensor in [x, *moved]]

    def step(given):
        x, *weights = given
        results = torch.func.functional_call(module, dict(zip(names, weights)), (x * 1,))
        results = tree_tensors(results)
        return [result.detach() for result in results] + gradients_of(results, given)

    return Case(name, values, step)


class Cells(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cell = getattr(torch.nn, kind)(4, 4)

    def forward(self, x):
        return self.cell(x[1], self.cell(x[0]) if not isinstance(self.cell, torch.nn.LSTMCell) else self.cell(x[0]))


class Between(torch.nn.Module):
    """An activation in place on what a linear layer returns, twice."""

    def __init__(self, activation):
        super().__init__()
        self.one, self.two, self.activation = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), activation

    def forward(self, x):
        return self.activation(self.two(self.activation(self.one(x))))


def module_cases(device):
    for name, options in ACTIVATIONS.items():
        make = functools.partial(getattr(torch.nn, name), inplace=True, **options)
        yield module_case(f"{name} in place", lambda make=make: Between(make()), device)
    for name, (kind, options) in RECURRENT.items():
        yield module_case(name, functools.partial(getattr(torch.nn, kind), 4, 4, **options), device)
    for kind in ("RNNCell", "LSTMCell", "GRUCell"):
        yield module_case(kind, functools.partial(Cells, kind), device)


# ---- tests ----


@pytest.fixture(autouse=True)
def deterministic():
    """Operators without a deterministic variant are told by running eager twice; what an operator leaves unwritten is NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    with quiet():
        yield


def assert_sound(tally, without_sample):
    tally.show()
    assert not tally.names("wrong"), tally.text()
    assert len(tally.names("no sample")) <= without_sample * len(tally.tried()), tally.text()
    assert len(tally.names("right")) > 0.7 * len(tally.tried()), tally.text()


@pytest.mark.parametrize("viewed", [False, True], ids=["result", "view"])
def test_operators_in_place_and_their_gradients_equal_eager(device, viewed):
    assert_sound(sweep_in_place(device, viewed), 0.05)


def test_operators_that_write_into_out_equal_eager(device):
    assert_sound(sweep_out(device), 0.05)


def test_layers_that_work_in_place_equal_eager(device):
    tally = Tally("layers", device)
    for case in module_cases(device):
        tally.begin(case.name)
        tally.add(case.name, *judge(case, device))
    assert_sound(tally, 0)
