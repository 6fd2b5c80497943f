"""What a step reads besides tensors, changed after its capture: eager's result, by another capture if need be, never the old one.

One table: each row makes a step and says how to change what it reads. The same function, called as it is, is the eager twin.
"""

import collections
import dataclasses
import datetime
import enum
import functools
import math
import os
import re
import sys
import types

import pytest
import torch
from torch import nn

import pianola
from reads import Case, check_graphed, check_iteration

CASES = {}


def case(*values):
    def add(make):
        CASES[make.__name__] = (make, values)
        return make

    return add


def made(name, device):
    make, values = CASES[name]
    result = make(device)
    return dataclasses.replace(result, values=values) if values else result


# --- Variables ---

NUMBER = 1.5
TABLE = {"scale": 1.5, "deep": {"scale": 1.5}, "list": [1.5, 2.0], "unread": 0}
MODE = None


@case()
def global_number(device):
    def change(value):
        global NUMBER
        NUMBER = value

    return Case(lambda x: x * NUMBER, change)


@case()
def number_of_tensors_that_a_loop_goes_through(device):
    scales = [torch.ones(2, device=device) for _ in range(2)]

    def change(value):
        for one in scales:
            one.rate = value

    change(1.5)
    return Case(lambda x: sum(x * one.rate for one in scales), change)


@case()
def number_of_parameters_that_a_loop_goes_through(device):
    layer = nn.Linear(2, 2).to(device)

    def change(value):
        for one in layer.parameters():
            one.rate = value

    def step(x):
        for one in layer.parameters():
            x = x * one.rate
        return x

    change(1.5)
    return Case(step, change)


@case()
def number_of_a_module_that_the_step_makes(device):
    number = [1.5]

    class Scaled(nn.Sequential):
        def __init__(self, factor):
            super().__init__(nn.Identity())
            self.factor = factor

        def forward(self, x):
            return super().forward(x) * self.factor

    return Case(lambda x: Scaled(number[0])(x), lambda value: number.__setitem__(0, value))


@case()
def closure_number(device):
    number = 1.5

    def change(value):
        nonlocal number
        number = value

    return Case(lambda x: x * number, change)


@case()
def argument_number(device):
    held = [1.5]
    return Case(lambda x, number: x * number, lambda value: held.__setitem__(0, value), lambda: (held[0],))


@case()
def function_default(device):
    def step(x, number=1.5):
        return x * number

    return Case(step, lambda value: setattr(step, "__defaults__", (value,)))


@case()
def keyword_default_of_a_called_function(device):
    def helper(x, *, number=1.5):
        return x * number

    return Case(lambda x: helper(x), lambda value: helper.__kwdefaults__.update(number=value))


@case()
def global_of_another_module(device):
    other = types.ModuleType("other")
    exec("NUMBER = 1.5\ndef scaled(x):\n    return x * NUMBER\n", vars(other))
    return Case(lambda x: other.scaled(x), lambda value: setattr(other, "NUMBER", value))


@case()
def attribute_of_an_imported_module(device):
    other = types.ModuleType("other")
    other.number = 1.5
    return Case(lambda x: x * other.number, lambda value: setattr(other, "number", value))


@case()
def environment_variable(device):
    os.environ["PIANOLA_READS_TEST"] = "1.5"
    return Case(
        lambda x: x * float(os.environ["PIANOLA_READS_TEST"]),
        lambda value: os.environ.__setitem__("PIANOLA_READS_TEST", str(value)),
        undo=lambda: os.environ.pop("PIANOLA_READS_TEST"),
    )


@case()
def environment_variable_by_getenv(device):
    os.environ["PIANOLA_READS_TEST"] = "1.5"
    return Case(
        lambda x: x * float(os.getenv("PIANOLA_READS_TEST", "7")),
        lambda value: os.environ.__setitem__("PIANOLA_READS_TEST", str(value)),
        undo=lambda: os.environ.pop("PIANOLA_READS_TEST"),
    )


@case()
def a_global_that_hides_a_builtin(device):
    space = {}
    exec("def step(x):\n    return x * abs(-2.0)\n", space)
    return Case(space["step"], lambda value: space.__setitem__("abs", lambda number: value))


@case("relu", "sigmoid", "tanh", "relu")
def global_function(device):
    held = {"f": torch.relu}
    space = {"f": torch.relu}
    exec("def step(x):\n    return f(x)\n", space)
    return Case(space["step"], lambda value: space.__setitem__("f", getattr(torch, value)))


@case(1, 1.0, True, 1)
def equal_but_not_same_global(device):
    space = {"number": 1, "torch": torch, "device": device}
    exec("def step(x):\n    return torch.full((2,), number, device=device)\n", space)
    return Case(space["step"], lambda value: space.__setitem__("number", value))


@case(1, 1.0, True, 1)
def equal_but_not_same_argument(device):
    held = [1]
    return Case(lambda x, n: torch.full((2,), n, device=device), lambda value: held.__setitem__(0, value), lambda: (held[0],))


@case((1, 2), (1.0, 2), (True, 2), (1, 2))
def equal_but_not_same_in_a_tuple(device):
    held = types.SimpleNamespace(pair=(1, 2))
    return Case(lambda x: torch.full((2,), held.pair[0], device=device), lambda value: setattr(held, "pair", value))


@case(1, 1.0, True, 1)
def equal_but_not_same_key_of_an_argument(device):
    held = [1]

    def step(x, table):
        return torch.full((2,), next(iter(table)), device=device) + table[1] * 0

    return Case(step, lambda value: held.__setitem__(0, value), lambda: ({held[0]: torch.ones(2, device=device)},))


@case(0.0, -0.0, 0.0, -0.0)
def sign_of_zero(device):
    number = 0.0

    def change(value):
        nonlocal number
        number = value

    return Case(lambda x: 1 / torch.full((2,), number, device=device), change)


@case(0.0, -0.0, 0.0, -0.0)
def sign_of_zero_argument(device):
    held = [0.0]
    return Case(lambda x, n: 1 / torch.full((2,), n, device=device), lambda value: held.__setitem__(0, value), lambda: (held[0],))


@case(math.nan, 1.0, math.nan, 2.0)
def not_a_number(device):
    held = types.SimpleNamespace(number=math.nan)
    return Case(lambda x: x * held.number, lambda value: setattr(held, "number", float(value)))


# --- Objects ---


class Settings:
    shared = 1.5

    def __init__(self):
        self.scale = 1.5
        self.inner = types.SimpleNamespace(scale=1.5)
        self.table = {"scale": 1.5}
        self.unread = 0

    @property
    def twice(self):
        return self.scale * 2

    def scaled(self, x):
        return x * self.inner.scale


@case()
def attribute_of_an_object(device):
    settings = Settings()
    return Case(lambda x: x * settings.scale, lambda value: setattr(settings, "scale", value))


@case()
def nested_attribute(device):
    settings = Settings()
    return Case(lambda x: x * settings.inner.scale, lambda value: setattr(settings.inner, "scale", value))


@case()
def attribute_that_a_method_reads(device):
    settings = Settings()
    return Case(lambda x: settings.scaled(x), lambda value: setattr(settings.inner, "scale", value))


@case()
def attribute_behind_a_local_variable(device):
    settings = Settings()

    def step(x):
        inner = settings.inner
        for one in (inner, inner):
            x = x * one.scale
        return x

    return Case(step, lambda value: setattr(settings.inner, "scale", value))


@case()
def attribute_of_what_a_function_returns(device):
    settings = Settings()

    def find():
        return settings

    return Case(lambda x: x * find().scale, lambda value: setattr(settings, "scale", value))


@case()
def attribute_by_name(device):
    settings = Settings()
    return Case(lambda x: x * getattr(settings, "scale"), lambda value: setattr(settings, "scale", value))


@case()
def attribute_by_a_name_made_at_run_time(device):
    settings = Settings()
    return Case(lambda x: x * getattr(settings, "sc" + "ale"[:3]), lambda value: setattr(settings, "scale", value))


@case()
def attribute_in_the_dictionary_of_an_object(device):
    settings = Settings()
    return Case(lambda x: x * vars(settings)["scale"], lambda value: setattr(settings, "scale", value))


@case()
def attribute_of_an_argument(device):
    settings = Settings()
    return Case(lambda x, s: x * s.scale, lambda value: setattr(settings, "scale", value), lambda: (settings,))


@case()
def property_of_an_object(device):
    settings = Settings()
    return Case(lambda x: x * settings.twice, lambda value: setattr(settings, "scale", value))


@case()
def class_attribute(device):
    kind = type("Kind", (Settings,), {"shared": 1.5})
    settings = kind()
    return Case(lambda x: x * settings.shared, lambda value: setattr(kind, "shared", value))


@case()
def attribute_of_a_base_class(device):
    base = type("Base", (), {"shared": 1.5})
    kind = type("Kind", (base,), {})
    return Case(lambda x: x * kind.shared, lambda value: setattr(base, "shared", value))


@case()
def attribute_that_comes_to_hide_that_of_the_class(device):
    settings = Settings()
    return Case(lambda x: x * settings.shared, lambda value: setattr(settings, "shared", value))


@case()
def method_replaced_in_the_class(device):
    kind = type("Kind", (), {"scaled": lambda self, x: x * 1.5})
    one = kind()
    return Case(lambda x: one.scaled(x), lambda value: setattr(kind, "scaled", lambda self, x: x * value))


@case()
def object_with_slots(device):
    class Slotted:
        __slots__ = ("scale",)

    one = Slotted()
    one.scale = 1.5
    return Case(lambda x: x * one.scale, lambda value: setattr(one, "scale", value))


@case()
def dataclass_field(device):
    @dataclasses.dataclass
    class Settings:
        scale: float = 1.5

    settings = Settings()
    return Case(lambda x: x * settings.scale, lambda value: setattr(settings, "scale", value))


@case()
def dataclass_argument(device):
    @dataclasses.dataclass
    class Settings:
        scale: float = 1.5

    settings = Settings()
    return Case(lambda x, s: x * s.scale, lambda value: setattr(settings, "scale", value), lambda: (settings,))


@case()
def namedtuple(device):
    Pair = collections.namedtuple("Pair", "scale other")
    held = types.SimpleNamespace(pair=Pair(1.5, 0))
    return Case(lambda x: x * held.pair.scale, lambda value: setattr(held, "pair", Pair(value, 0)))


class Color(enum.Enum):
    RED = 1
    GREEN = 2
    BLUE = 3


@case(Color.RED, Color.GREEN, Color.BLUE, Color.RED)
def enumeration(device):
    held = types.SimpleNamespace(color=Color.RED)
    return Case(lambda x: x * held.color.value, lambda value: setattr(held, "color", value))


@case()
def object_in_the_place_of_another(device):
    held = types.SimpleNamespace(settings=Settings())

    def change(value):
        held.settings = Settings()
        held.settings.scale = value

    return Case(lambda x: x * held.settings.scale, change)


@case()
def partial(device):
    held = {"scale": 1.5}
    scaled = functools.partial(lambda x, table: x * table["scale"], table=held)
    return Case(lambda x: scaled(x), lambda value: held.__setitem__("scale", value))


@case()
def partial_as_the_step(device):
    settings = Settings()
    return Case(functools.partial(lambda s, x: x * s.scale, settings), lambda value: setattr(settings, "scale", value))


@case()
def closure_of_a_decorated_function(device):
    def decorated(function, table):
        @functools.wraps(function)
        def wrapper(x):
            return function(x) * table["scale"]

        return wrapper

    table = {"scale": 1.5}
    helper = decorated(lambda x: x + 1, table)
    return Case(lambda x: helper(x), lambda value: table.__setitem__("scale", value))


@case()
def bound_method_as_the_step(device):
    class Trainer:
        def __init__(self):
            self.settings = types.SimpleNamespace(scale=1.5)
            self.count = 0

        def step(self, x):
            return x * self.settings.scale

    trainer = Trainer()
    return Case(trainer.step, lambda value: setattr(trainer.settings, "scale", value))


@case()
def code_of_a_function(device):
    def helper(x):
        return x * 1.5

    def change(value):
        space = {}
        exec(f"def helper(x):\n    return x * {value}\n", space)
        helper.__code__ = space["helper"].__code__

    return Case(lambda x: helper(x), change)


# --- Containers ---


@case()
def entry_of_a_dict(device):
    table = {"scale": 1.5}
    return Case(lambda x: x * table["scale"], lambda value: table.__setitem__("scale", value))


@case()
def entry_of_a_dict_by_get(device):
    table = {"scale": 1.5}
    return Case(lambda x: x * table.get("scale", 1), lambda value: table.__setitem__("scale", value))


@case()
def entry_of_a_dict_under_a_computed_key(device):
    table = {"a": {"scale": 1.5}}
    return Case(lambda x: x * table["a".lower()]["scale"], lambda value: table["a"].__setitem__("scale", value))


@case()
def entry_of_a_dict_in_a_dict(device):
    table = {"a": {"scale": 1.5}}
    return Case(lambda x: x * table["a"]["scale"], lambda value: table["a"].__setitem__("scale", value))


@case(1, 2, 3, 1)
def new_entry_of_a_dict(device):
    table = {}
    return Case(lambda x: x * (1 + len(table)), lambda value: (table.clear(), table.update(dict.fromkeys(range(value)))))


@case(("a", "b"), ("b", "a"), ("a", "b"), ("b", "a"))
def order_of_a_dict(device):
    table = {}

    def step(x):
        for name in table:
            x = x * 2 if name == "a" else x + 1
        return x

    def change(names):
        table.clear()
        table.update(dict.fromkeys(names))

    return Case(step, change)


@case()
def entry_of_a_list(device):
    numbers = [1.5, 2.0]
    return Case(lambda x: x * numbers[0], lambda value: numbers.__setitem__(0, value))


@case()
def list_that_is_gone_through(device):
    numbers = [1.5, 2.0]

    def step(x):
        for number in numbers:
            x = x * number
        return x

    return Case(step, lambda value: numbers.__setitem__(1, value))


@case(1, 2, 3, 1)
def length_of_a_list(device):
    numbers = [0]
    return Case(lambda x: x * len(numbers), lambda value: numbers.__setitem__(slice(None), [0] * value))


@case()
def list_argument(device):
    numbers = [1.5, 2.0]
    return Case(lambda x, n: x * n[0], lambda value: numbers.__setitem__(0, value), lambda: (numbers,))


@case()
def tensor_of_a_host_list(device):
    numbers = [1.5, 2.0]
    return Case(lambda x: x[:2] * torch.tensor(numbers, device=device), lambda value: numbers.__setitem__(0, value))


@case(0, 1, 2, 0)
def tensors_that_change_places_in_a_list(device):
    tensors = [torch.full((4,), float(i), device=device) for i in range(3)]
    first = list(tensors)
    return Case(lambda x: x * 2 + tensors[0] - tensors[1] / 4, lambda value: tensors.__setitem__(slice(None), first[value:] + first[:value]))


@case({1}, {1, 2}, {1, 2, 3}, {1})
def contents_of_a_set(device):
    numbers = {1}
    return Case(lambda x: x * sum(numbers), lambda value: (numbers.clear(), numbers.update(value)))


@case({1}, {1, 2}, {1, 2, 3}, {1})
def set_argument(device):
    numbers = {1}
    return Case(lambda x, n: x * len(n), lambda value: (numbers.clear(), numbers.update(value)), lambda: (numbers,))


@case()
def contents_of_a_deque(device):
    numbers = collections.deque([1.0, 1.5])
    return Case(lambda x: x * numbers[-1], lambda value: numbers.__setitem__(-1, value))


@case()
def entry_of_an_object_in_a_list(device):
    all_settings = [Settings(), Settings()]

    def step(x):
        for i, settings in enumerate(all_settings):
            x = x * settings.scale + i
        return x

    return Case(step, lambda value: setattr(all_settings[1], "scale", value))


@case()
def userdict(device):
    table = collections.UserDict(scale=1.5)
    return Case(lambda x: x * table["scale"], lambda value: table.__setitem__("scale", value))


@case()
def read_only_mapping(device):
    table = {"scale": 1.5}
    view = types.MappingProxyType(table)
    return Case(lambda x: x * view["scale"], lambda value: table.__setitem__("scale", value))


@case()
def numpy_scalar(device):
    numpy = pytest.importorskip("numpy")
    held = types.SimpleNamespace(number=numpy.float64(1.5))
    return Case(lambda x: x * float(held.number), lambda value: setattr(held, "number", numpy.float64(value)))


@case()
def numpy_array(device):
    numpy = pytest.importorskip("numpy")
    array = numpy.array([1.5, 2.0])
    return Case(lambda x: x * float(array[0]), lambda value: array.__setitem__(0, value))


@case()
def numpy_array_argument(device):
    numpy = pytest.importorskip("numpy")
    array = numpy.array([1.5, 2.0])
    return Case(lambda x, a: x * float(a[0]), lambda value: array.__setitem__(0, value), lambda: (array,))


@case(torch.float32, torch.float64, torch.float16, torch.float32)
def dtype(device):
    held = types.SimpleNamespace(dtype=torch.float32)
    return Case(lambda x: x.to(held.dtype) * 2, lambda value: setattr(held, "dtype", value))


@case(1, 2, 3, 1)
def tensor_in_an_attribute(device):
    held = types.SimpleNamespace(weight=torch.full((4,), 1.0, device=device))
    return Case(lambda x: x * held.weight, lambda value: setattr(held, "weight", torch.full((4,), float(value), device=device)))


# --- Modules ---


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.act = nn.LeakyReLU(0.1)
        self.scale = 1.5
        self.table = {"scale": 1.5}
        self.calls = 0

    def forward(self, x):
        return self.act(self.norm(self.linear(x))) * self.scale * self.table["scale"]


def block(device, change, values=None):
    torch.manual_seed(1)
    module = nn.Sequential(Block(), Block()).to(device).eval()
    step = torch.no_grad()(lambda x: module(x))
    return Case(step, lambda value: change(module, value))


@case()
def attribute_of_a_module(device):
    return block(device, lambda module, value: setattr(module[1], "scale", value))


@case()
def table_of_a_module(device):
    return block(device, lambda module, value: module[1].table.__setitem__("scale", value))


@case()
def number_of_a_module_of_torch(device):
    return block(device, lambda module, value: setattr(module[0].act, "negative_slope", value))


@case()
def eps_of_a_normalization(device):
    return block(device, lambda module, value: setattr(module[0].norm, "eps", abs(value)))


@case(0.1, 0.5, 0.9, 0.1)
def probability_of_a_dropout(device):
    module = nn.Dropout(0.1).to(device).train()

    def step(x):
        return module(torch.ones(256, device=device)) + x[0] * 0

    return Case(step, lambda value: setattr(module, "p", value))


@case()
def hook_of_a_submodule(device):
    def change(module, value):
        change.handle.remove()
        change.handle = module[0].linear.register_forward_hook(lambda module, args, output: output * value)

    change.handle = types.SimpleNamespace(remove=lambda: None)
    return block(device, change)


@case()
def hook_before_a_submodule(device):
    def change(module, value):
        change.handle.remove()
        change.handle = module[0].linear.register_forward_pre_hook(lambda module, args: (args[0] * value,))

    change.handle = types.SimpleNamespace(remove=lambda: None)
    return block(device, change)


@case()
def what_a_hook_reads(device):
    settings = Settings()
    result = block(device, lambda module, value: setattr(settings, "scale", value))
    module = result.step.__wrapped__.__closure__[0].cell_contents
    module[0].linear.register_forward_hook(lambda module, args, output: output * settings.scale)
    return result


@case()
def hook_of_all_modules(device):
    handles = []

    def change(module, value):
        while handles:
            handles.pop().remove()

        def hook(module, args, output):
            return output * value if isinstance(module, nn.Linear) else None

        handles.append(torch.nn.modules.module.register_module_forward_hook(hook))

    return dataclasses.replace(block(device, change), undo=lambda: [handle.remove() for handle in handles])


@case()
def forward_of_a_submodule(device):
    return block(device, lambda module, value: setattr(module[0].linear, "forward", lambda x: x * value))


@case()
def forward_of_a_class(device):
    kind = type("Kind", (nn.Module,), {"forward": lambda self, x: x * 1.5})
    module = kind()
    return Case(lambda x: module(x), lambda value: setattr(kind, "forward", lambda self, x: x * value))


@case()
def submodule_in_the_place_of_another(device):
    return block(device, lambda module, value: setattr(module[0], "act", nn.LeakyReLU(value)))


@case(True, False, True, False)
def training_flag(device):
    torch.manual_seed(1)
    module = nn.Sequential(nn.BatchNorm1d(4, track_running_stats=True)).to(device)
    rows = torch.randn(8, 4, device=device)

    return Case(torch.no_grad()(lambda x: module(rows * x[0])), module.train)


@case(1, 2, 3, 1)
def buffer_in_the_place_of_another(device):
    module = nn.Module()
    module.register_buffer("weight", torch.ones(4, device=device))
    module.forward = lambda x: x * module.weight
    return Case(lambda x: module(x), lambda value: setattr(module, "weight", torch.full((4,), float(value), device=device)))


@case(0.1, 0.2, 0.3, 0.1)
def rate_of_an_optimizer(device):
    module = nn.Linear(4, 4).to(device)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    return Case(lambda x: x * optimizer.param_groups[0]["lr"], lambda value: optimizer.param_groups[0].__setitem__("lr", value))


# --- Settings of torch ---


def setting(name, get, put, *values):
    def make(device):
        before = get()
        put(values[0])

        def step(x):
            return x * (1 + values.index(get()))

        return Case(step, put, undo=lambda: put(before))

    make.__name__ = name
    CASES[name] = (make, (values[0], values[1], values[0], values[1]))


def attribute(owner, name):
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


setting("deterministic_algorithms", torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True, False)
setting("matmul_precision", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "highest", "medium")
setting("tf32_of_matmul", *attribute(torch.backends.cuda.matmul, "allow_tf32"), False, True)
setting("tf32_of_cudnn", *attribute(torch.backends.cudnn, "allow_tf32"), True, False)
setting("cudnn_enabled", *attribute(torch.backends.cudnn, "enabled"), True, False)
setting("cudnn_benchmark", *attribute(torch.backends.cudnn, "benchmark"), False, True)
setting("cudnn_deterministic", *attribute(torch.backends.cudnn, "deterministic"), False, True)
setting("flash_attention", torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp, True, False)
setting("math_attention", torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp, True, False)
setting("number_of_threads", torch.get_num_threads, torch.set_num_threads, 1, 2)


@case(torch.float32, torch.float64, torch.float32, torch.float64)
def default_dtype(device):
    return Case(lambda x: torch.ones(4, device=device) * 2, torch.set_default_dtype, undo=lambda: torch.set_default_dtype(torch.float32))


# --- The sweep ---


@pytest.mark.parametrize("name", CASES)
def test_what_a_step_reads_may_change_after_its_capture(device, name):
    check_graphed(made(name, device), device)


@pytest.mark.parametrize("name", CASES)
def test_what_an_iteration_reads_may_change_after_its_capture(device, name):
    check_iteration(made(name, device), device)


# --- What is not read, and what changes all the time ---


def test_what_is_not_read_may_change_at_each_call(device):
    settings = Settings()
    table = {"scale": 1.5, "step": 0}

    class Trainer:
        step = 0

    trainer = Trainer()
    graphed = pianola.graphed(lambda x: x * settings.scale * table["scale"])
    x = torch.ones(4, device=device)
    for i in range(40):
        settings.unread = trainer.step = table["step"] = i
        assert torch.equal(graphed(x), x * 1.5 * 1.5)
    assert graphed.info().signatures[0].replays == 37


def test_a_module_that_counts_in_its_own_dictionary_is_captured_once(device):
    module = Block().to(device).eval()
    graphed = pianola.graphed(torch.no_grad()(lambda x: module(x)))
    x = torch.randn(2, 4, device=device)
    for i in range(40):
        module.calls = i
        with torch.no_grad():
            assert torch.equal(graphed(x), module(x))
    assert graphed.info().signatures[0].replays == 37


def test_values_that_come_back_find_their_graphs(device):
    settings = Settings()
    graphed = pianola.graphed(lambda x: x * settings.scale)
    x = torch.ones(4, device=device)
    for i in range(60):
        settings.scale = float(1 + i // 5 % 3)
        assert torch.equal(graphed(x), x * settings.scale)
    assert [(one.recaptures, one.eager_calls) for one in graphed.info().signatures] == [(0, 3)] * 3


def test_a_value_that_changes_at_each_call_keeps_it_eager_and_is_named(device):
    settings = Settings()
    reasons = []
    graphed = pianola.graphed(lambda x: x * settings.inner.scale, on_fallback=reasons.append, warmup=1)
    x = torch.ones(4, device=device)
    for i in range(40):
        settings.inner.scale = 0.5 + i
        assert torch.equal(graphed(x), x * settings.inner.scale)
    (reason,) = reasons
    assert re.search(r"settings.inner.scale changed from [\d.]+ to [\d.]+, which reads_test.py:\d+ in <lambda> reads", reason)
    assert any("settings.inner.scale" in one.reason for one in graphed.info().signatures)
    for i in range(12):  # and when it rests, it is captured
        assert torch.equal(graphed(x), x * settings.inner.scale)
    assert sum(one.replays for one in graphed.info().signatures) >= 8


def test_an_iteration_whose_values_change_at_each_call_says_so(device):
    settings = Settings()
    iteration = pianola.FullIteration(lambda batches: batches[0] * settings.scale)
    x = torch.ones(4, device=device)
    with pytest.raises(pianola.UsageError, match=r"settings.scale changed from [\d.]+ to [\d.]+, which reads_test.py:\d+ in <lambda> reads"):
        for i in range(40):
            settings.scale = 0.5 + i
            assert torch.equal(iteration([x]), x * settings.scale)


def test_another_tracer_goes_on_hearing(device):
    heard = []
    graphed = pianola.graphed(lambda x: x * 2)
    sys.setprofile(lambda frame, event, argument: heard.append(frame.f_code.co_name))
    try:
        mine = sys.getprofile()
        graphed(torch.ones(2, device=device))
        assert sys.getprofile() is mine
    finally:
        sys.setprofile(None)
    assert "<lambda>" in heard


def test_what_is_too_large_to_be_compared_keeps_it_eager_and_is_named(device):
    numbers = list(range(200_000))
    reasons = []
    graphed = pianola.graphed(lambda x: x * sum(numbers), on_fallback=reasons.append)
    x = torch.ones(2, device=device)
    for i in range(6):
        numbers[0] = i
        assert torch.equal(graphed(x), x * sum(numbers))
    (reason,) = reasons
    assert "what it reads on the host cannot be compared at each call: numbers has 200000 entries" in reason
    one = pianola.graphed(lambda x: x * numbers[1])  # one entry of it can be
    for i in range(12):
        numbers[1] = i // 6
        assert torch.equal(one(x), x * numbers[1])
    assert sum(signature.replays for signature in one.info().signatures) == 6


def test_what_cannot_be_followed_is_named(device):
    # As objects of C extensions are, and one that has no room for anything.
    opaque = type("Opaque", (datetime.date,), {"__slots__": (), "__module__": "elsewhere"})(2000, 1, 1)
    sentinel = type("Sentinel", (), {"__slots__": (), "__module__": "elsewhere"})()
    graphed = pianola.graphed(lambda x: x * (1 if bool(opaque) and bool(sentinel) else 2))
    for _ in range(2):
        graphed(torch.ones(2, device=device))
    info = graphed.info()
    assert info.unfollowed == ["the inside of opaque, a elsewhere.Opaque"] and "the inside of opaque" in str(info)


def unwrapped(model, kind):
    """As accelerate has it: each loop goes on from all that the one before may have found."""
    while isinstance(model, kind):
        model = model.module
    if kind:
        while isinstance(model, kind):
            model = model.module
        inner = model
        while hasattr(inner, "_orig_mod"):
            inner = inner._orig_mod
        model = inner
    while isinstance(model, kind):
        model = model.module
    return model


def test_loops_in_a_row_that_follow_attributes_are_read_in_time(device):
    class Wrapper:
        def __init__(self, module):
            self.module = module

    class Model:
        scale = 2.0

    model = Model()
    wrapped = Wrapper(Wrapper(model))
    step = pianola.graphed(lambda x: x * unwrapped(wrapped, Wrapper).scale)
    for call in range(16):
        model.scale = 2.0 if call < 8 else 3.0
        assert step(torch.ones(2, device=device)).tolist() == [model.scale] * 2
