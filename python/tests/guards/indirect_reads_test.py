"""What a step reads by ways that its own code does not show: iterators, properties, proxies, objects of C's, patterns.

One table, as that of reads_test.py: each row makes a step and says how to change what it reads.
"""

import abc
import builtins
import collections
import contextvars
import ctypes
import importlib
import io
import operator
import sys
import tempfile
import threading
import types
import weakref

import numpy
import pytest
import torch
from torch import nn

import pianola
from pianola import _C
from pianola._host_places import MISSING
from reads import Case, check_graphed, check_iteration

CASES = {}


def case(make):
    CASES[make.__name__] = make
    return make


class Layer:
    kept = 1.0

    def __init__(self, scale=1.5):
        self.scale = scale


def layers_and_change(count=3):
    layers = [Layer() for _ in range(count)]
    return layers, lambda value: setattr(layers[-1], "scale", value)


# --- Things that are gone through ---


@case
def comprehension(device):
    layers, change = layers_and_change()
    return Case(lambda x: x * sum([layer.scale for layer in layers]), change)


@case
def dictionary_comprehension(device):
    layers, change = layers_and_change()
    return Case(lambda x: x * {i: layer.scale for i, layer in enumerate(layers)}[2], change)


@case
def generator_expression(device):
    layers, change = layers_and_change()
    return Case(lambda x: x * sum(layer.scale for layer in layers), change)


@case
def iterator_as_an_argument(device):
    layers, change = layers_and_change()

    def total(entries):
        result = 0.0
        for layer in entries:
            result += layer.scale
        return result

    return Case(lambda x: x * total(iter(layers)), change)


@case
def entries_of_a_dict_that_is_gone_through_by_key(device):
    layers, change = layers_and_change()
    table = dict(enumerate(layers))

    def step(x):
        for key in table:
            x = x * table[key].scale
        return x

    return Case(step, change)


@case
def keys_of_a_dict(device):
    layers, change = layers_and_change()
    table = {layer: 1.0 for layer in layers}
    return Case(lambda x: x * sum(layer.scale for layer in table), change)


@case
def view_of_a_dict(device):
    table = {"a": 1.5, "b": 2.0}
    view = table.values()
    return Case(lambda x: x * sum(view), lambda value: table.__setitem__("a", value))


@case
def one_entry_and_the_whole(device):
    table = {"a": 1.5, "b": 2.0}

    def step(x):
        for value in table.values():
            x = x * value
        return x + table["a"]

    return Case(step, lambda value: table.__setitem__("a", value))


@case
def entry_of_a_dict_in_a_list(device):
    tables = [{"a": 2.0}, {"a": 1.5}]
    return Case(lambda x: x * tables[1]["a"], lambda value: tables[1].__setitem__("a", value))


@case
def second_entry_of_a_long_list(device):
    numbers = [1.0] * 200_000
    return Case(lambda x: x * numbers[0] + numbers[1], lambda value: numbers.__setitem__(1, value))


@case
def object_in_a_long_list(device):
    numbers = [Layer()] * 200_000
    return Case(lambda x: x * numbers[7].scale, lambda value: numbers.__setitem__(7, Layer(value)))


@case
def order_of_an_ordered_dict(device):
    table = collections.OrderedDict(a=1.0, b=2.0)

    def step(x):
        for value in table.values():
            x = x * value + 1
        return x

    return Case(step, lambda value: table.move_to_end("a", last=value > 0))


@case
def submodules_in_a_comprehension(device):
    module = nn.ModuleList([nn.Identity(), nn.Identity()])
    for one in module:
        one.gain = 1.5
    return Case(lambda x: x * sum([one.gain for one in module]), lambda value: setattr(module[1], "gain", value))


@case
def objects_made_for_one_call_each(device):
    layers, change = layers_and_change(50)

    class Helper:
        def __init__(self, layer):
            self.layer = layer

        def run(self, x):
            return x * self.layer.scale

    def step(x):
        for layer in layers:
            x = Helper(layer).run(x)
        return x

    return Case(step, change)


# --- Attributes ---


@case
def attribute_behind_a_property(device):
    layer = Layer()
    holder = type("Holder", (), {"layer": property(lambda self: layer)})()
    return Case(lambda x: x * holder.layer.scale, lambda value: setattr(layer, "scale", value))


@case
def attribute_in_a_named_tuple(device):
    pair = collections.namedtuple("Pair", "number layer")(1.0, Layer())
    return Case(lambda x: x * pair.layer.scale, lambda value: setattr(pair.layer, "scale", value))


@case
def attribute_that_hides_that_of_the_class(device):
    layers, _ = layers_and_change()
    return Case(lambda x: x * sum(layer.kept for layer in layers), lambda value: setattr(layers[1], "kept", value))


@case
def attribute_that_may_be_missing(device):
    layers, _ = layers_and_change()

    def change(value):
        delattr(layers[1], "extra") if value == 1.5 and hasattr(layers[1], "extra") else setattr(layers[1], "extra", value)

    return Case(lambda x: x * sum(getattr(layer, "extra", 1.0) for layer in layers), change)


@case
def attribute_of_its_class(device):
    kind = type("Kind", (), {"scale": 1.5})
    one = kind()
    return Case(lambda x: x * one.__class__.scale, lambda value: setattr(kind, "scale", value))


@case
def attribute_in_its_dictionary(device):
    layer = Layer()
    return Case(lambda x: x * layer.__dict__["scale"], lambda value: setattr(layer, "scale", value))


@case
def attribute_that_getattr_finds_in_a_table(device):
    class Table:
        def __init__(self):
            self.__dict__["entries"] = {"scale": 1.5}

        def __getattr__(self, name):
            return self.__dict__["entries"][name]

    table = Table()
    return Case(lambda x: x * table.scale, lambda value: table.entries.__setitem__("scale", value))


@case
def dictionary_whose_entries_are_attributes(device):
    class Settings(dict):
        __getattr__ = dict.__getitem__

    settings = Settings(inner=Settings(scale=1.5))
    return Case(lambda x: x * settings.inner.scale, lambda value: settings["inner"].__setitem__("scale", value))


@case
def attribute_of_what_a_module_makes_on_demand(device):
    module = types.ModuleType("lazy")
    module._layer = Layer()
    exec("def __getattr__(name):\n    return _layer\n", vars(module))
    return Case(lambda x: x * module.layer.scale, lambda value: setattr(module._layer, "scale", value))


@case
def attribute_by_a_getter(device):
    layer = Layer()
    get = operator.attrgetter("scale")
    return Case(lambda x: x * get(layer), lambda value: setattr(layer, "scale", value))


@case
def attribute_in_a_format(device):
    layer = Layer()
    return Case(lambda x: x * float("{0.scale}".format(layer)), lambda value: setattr(layer, "scale", value))


@case
def attribute_in_a_pattern(device):
    layer = Layer()
    variables = {"Layer": Layer, "layer": layer}
    exec("def step(x):\n    match layer:\n        case Layer(scale=scale):\n            return x * scale\n", variables)
    return Case(variables["step"], lambda value: setattr(layer, "scale", value))


@case
def slot_of_an_object_in_a_list(device):
    kind = type("Kind", (), {"__slots__": ("layer",)})
    one = kind()
    one.layer = Layer()
    ones = [one]
    return Case(lambda x: x * sum(one.layer.scale for one in ones), lambda value: setattr(one.layer, "scale", value))


@case
def bound_method_of_a_dict(device):
    table = {"a": 1.5}
    get = table.get
    return Case(lambda x: x * get("a"), lambda value: table.__setitem__("a", value))


@case
def attribute_of_a_metaclass(device):
    class Scales(type):
        kept = 1.5

        @property
        def scale(cls):
            return cls.kept

    class Scaled(metaclass=Scales):
        pass

    return Case(lambda x: x * Scaled.scale, lambda value: setattr(Scales, "kept", value))


@case
def method_that_super_finds(device):
    class Base:
        def scale(self):
            return 1.5

    class Derived(Base):
        def scale(self):
            return super().scale() * 2

    derived = Derived()
    return Case(lambda x: x * derived.scale(), lambda value: setattr(Base, "scale", lambda self: value))


@case
def getter_that_the_step_makes(device):
    outer = types.SimpleNamespace(layer=Layer())
    return Case(lambda x: x * operator.attrgetter("layer.scale")(outer), lambda value: setattr(outer.layer, "scale", value))


@case
def strides_of_a_tensor(device):
    weight = torch.arange(16.0, device=device).view(4, 4)
    return Case(lambda x: weight @ x, lambda value: weight.t_() if value != 1.5 else None)


@case
def hook_on_a_leaf(device):
    weight = torch.ones(4, device=device, requires_grad=True)

    def step(x):
        weight.grad = None
        (x * weight).sum().backward()
        return weight.grad.clone()

    return Case(step, lambda value: weight.register_hook(lambda gradient: gradient * value))


@case
def method_of_tensors_that_is_replaced(device):
    kept = torch.Tensor.expm1

    def change(value):
        torch.Tensor.expm1 = lambda x: x * value

    def undo():
        torch.Tensor.expm1 = kept

    return Case(lambda x: (x * 2).expm1(), change, undo=undo)


@case
def function_of_pythons_that_is_replaced(device):
    kept = builtins.max

    def change(value):
        builtins.max = lambda *numbers: kept(*numbers) * value

    def undo():
        builtins.max = kept

    return Case(lambda x: x * max(1.0, 2.0), change, undo=undo)


@case
def class_that_counts_as_another(device):
    class Named(abc.ABC):
        pass

    layer = Layer()

    def change(value):
        if value != 1.5:
            Named.register(Layer)

    return Case(lambda x: x * (2.0 if isinstance(layer, Named) else 1.0), change)


# --- Modules that are imported where they are read ---


@pytest.fixture(autouse=True)
def settings_package():
    """A package with a module in it, as files would give them."""
    package, module = types.ModuleType("settings_of_users"), types.ModuleType("settings_of_users.rates")
    package.__path__ = []
    package.rates, module.layer, module.scale = module, Layer(), 1.5
    sys.modules.update({one.__name__: one for one in (package, module)})
    yield
    for one in (package, module):
        sys.modules.pop(one.__name__, None)


def change_of_settings(value):
    sys.modules["settings_of_users.rates"].scale = value


@case
def module_imported_inside(device):
    def step(x):
        import settings_of_users.rates

        return x * settings_of_users.rates.scale

    return Case(step, change_of_settings)


@case
def module_imported_inside_by_another_name(device):
    def step(x):
        import settings_of_users.rates as rates

        return x * rates.scale

    return Case(step, change_of_settings)


@case
def name_imported_inside(device):
    def step(x):
        from settings_of_users.rates import scale

        return x * scale

    return Case(step, change_of_settings)


@case
def object_imported_inside(device):
    def scaled(x):
        from settings_of_users import rates

        return x * rates.layer.scale

    return Case(lambda x: scaled(x) + 1, lambda value: setattr(sys.modules["settings_of_users.rates"].layer, "scale", value))


@case
def module_imported_by_a_function(device):
    return Case(lambda x: x * importlib.import_module("settings_of_users.rates").scale, change_of_settings)


@case
def module_put_in_place_of_another(device):
    def step(x):
        from settings_of_users.rates import scale

        return x * scale

    def change(value):
        sys.modules["settings_of_users.rates"] = types.SimpleNamespace(scale=value)

    return Case(step, change)


# --- Objects of C's and of the library ---


@case
def weak_reference(device):
    layer = Layer()
    reference = weakref.ref(layer)
    return Case(lambda x: x * reference().scale, lambda value: setattr(layer, "scale", value))


@case
def weak_proxy(device):
    layer = Layer()
    proxy = weakref.proxy(layer)
    return Case(lambda x: x * proxy.scale, lambda value: setattr(layer, "scale", value))


@case
def weak_dictionary(device):
    layer = Layer()
    table = weakref.WeakValueDictionary(a=layer)
    return Case(lambda x: x * table["a"].scale, lambda value: setattr(layer, "scale", value))


@case
def weak_set(device):
    layer = Layer()
    entries = weakref.WeakSet([layer])
    return Case(lambda x: x * sum(one.scale for one in entries), lambda value: setattr(layer, "scale", value))


@case
def context_variable(device):
    variable = contextvars.ContextVar("scale", default=1.5)
    return Case(lambda x: x * variable.get(), variable.set)


@case
def variable_of_the_thread(device):
    local = threading.local()
    return Case(lambda x: x * local.scale, lambda value: setattr(local, "scale", value))


@case
def event_of_threads(device):
    event = threading.Event()
    return Case(lambda x: x * (2 if event.is_set() else 1), lambda value: event.set() if value > 0 else event.clear())


@case
def number_of_ctypes(device):
    number = ctypes.c_double()
    return Case(lambda x: x * number.value, lambda value: setattr(number, "value", value))


@case
def method_of_an_array(device):
    array = numpy.array([1.5, 2.0])
    return Case(lambda x: x * float(array.sum()), lambda value: array.__setitem__(0, value))


@case
def text_in_memory(device):
    text = io.StringIO("1.5")

    def change(value):
        text.seek(0)
        text.truncate()
        text.write(str(value))

    return Case(lambda x: x * float(text.getvalue()), change)


AT = (4, 12, 60)


@pytest.mark.parametrize("name", CASES)
def test_what_a_step_reads_indirectly_may_change_after_its_capture(device, name):
    graphed = check_graphed(CASES[name](device), device, AT)
    assert not graphed.info().unfollowed


@pytest.mark.parametrize("name", CASES)
def test_what_an_iteration_reads_indirectly_may_change_after_its_capture(device, name):
    check_iteration(CASES[name](device), device)


def test_what_files_hold_is_named():
    with tempfile.TemporaryFile("w+") as file:
        graphed = pianola.graphed(lambda x: x * (1 + file.tell()))
        for _ in range(2):
            graphed(torch.ones(2))
    assert graphed.info().unfollowed == ["the inside of file, a _io.TextIOWrapper"]


# --- Looks that come in between ---


def guard_with(look, numbers):
    """Of a list whose entries are compared, and of what a function of the user's gives."""
    guard = _C.HostGuard()
    owner = {"numbers": numbers}
    guard.add("entry", owner, "numbers", numbers, MISSING)
    guard.add("contents", numbers, None, tuple(numbers), MISSING)
    guard.add("value", Layer, look, 1, MISSING)
    guard.seal()
    return guard, owner


def test_a_look_inside_a_look_finds_a_difference():
    inner = []

    def look():
        if inner == [None]:
            owner["numbers"] = [1.0, 2.0]  # the guard begins again with what is there now
            inner.append(guard.check())
        return 1

    guard, owner = guard_with(look, [1.0, 2.0])
    assert guard.check() == -1
    inner.append(None)
    assert guard.check() == -1
    assert inner == [None, 0]


def test_looks_of_two_threads_wait_for_each_other():
    found, others = [], []

    def look():
        if threading.current_thread() is threading.main_thread() and not others and found:
            owner["numbers"] = [1.0, 2.0]
            others.append(threading.Thread(target=lambda: found.append(guard.check())))
            others[0].start()
            others[0].join(0.2)
            assert others[0].is_alive()  # it waits
        return 1

    guard, owner = guard_with(look, [1.0, 2.0])
    found.append(guard.check())
    assert guard.check() == -1
    others[0].join()
    assert found == [-1, -1]


def test_states_that_change_while_they_are_looked_at():
    """Another thread's call comes in while an array is compared, and finds that nothing is worth keeping."""
    array, other = numpy.array([1.5]), [0]

    @pianola.graphed
    def step(x):
        return x * float(array[0]) * other[0]

    x = torch.ones(2)
    for other[0] in (1, 2, 1, 2):
        step(x)
    (known,) = step.states._known
    last, calls = known.states[-1], []
    difference = last.difference

    def look():
        if not calls:
            calls.append(None)
            for other[0] in range(3, 3 + 12):  # so many states that none is tried any more
                step(x)
            other[0] = 1
        return difference()

    last.difference = look
    other[0] = 1
    for _ in range(4):
        assert torch.equal(step(x), x * 1.5)
