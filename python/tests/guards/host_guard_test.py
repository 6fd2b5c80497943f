"""What a guard of host reads compares at each call is never out of date, however it was changed.

From Python 3.12 on the interpreter tells of changes of dicts and functions, before that dicts have versions, and where neither
is to be had all is compared: the answers are the same.
"""

import gc
import importlib
import sys
import threading
import types

import pytest
import torch

from guarded import WHOLE, Crowded, Other, Plain, function_of, guard_of, store

# --- Dictionaries ---

WAYS = {
    "another value": lambda d: d.__setitem__("a", 5),
    "a new key": lambda d: d.__setitem__("c", 5),
    "del": lambda d: d.__delitem__("a"),
    "pop": lambda d: d.pop("a"),
    "popitem": lambda d: d.popitem(),
    "clear": lambda d: d.clear(),
    "update": lambda d: d.update(a=5),
    "update by a dict": lambda d: d.update({"a": 5}),
    "or": lambda d: d.__ior__({"b": 5}),
    "setdefault": lambda d: d.setdefault("z", 1),
    "init": lambda d: d.__init__(q=1),
    "exec": lambda d: exec("b = 7", d),
    "cleared and filled": lambda d: (d.clear(), d.update({"a": 1, "b": 3})),
    "another order": lambda d: d.__setitem__("a", d.pop("a")),
    "equal, and not the same": lambda d: d.__setitem__("a", True),
}


class Named(dict):
    pass


@pytest.mark.parametrize("kind", [dict, Named])
@pytest.mark.parametrize("way", WAYS)
def test_a_change_of_a_dict_is_seen_and_so_is_its_end(way, kind):
    owner = kind(a=1, b=2)
    guard = guard_of(("contents", owner, WHOLE))
    for _ in range(3):
        WAYS[way](owner)
        assert guard.check() == 0
        assert guard.check() == 0
        owner.clear()
        owner.update(a=1, b=2)
        assert guard.check() == -1
        assert guard.check() == -1


def test_a_dict_that_was_empty_is_seen_to_be_filled_with_the_entries_of_another():
    owner = {}
    guard = guard_of(("contents", owner, WHOLE))
    owner.update({"a": 1})  # which takes them as they lie
    assert guard.check() == 0


def test_a_dict_that_changes_and_changes_back_is_as_it_was():
    owner = {"a": 1, "calls": 0}
    guard = guard_of(("entry", owner, "a"))
    for _ in range(10):
        owner["a"] = 2
        owner["a"] = 1
        owner["calls"] += 1
        assert guard.check() == -1
    owner["a"] = 2
    assert guard.check() == 0


def test_guards_of_one_dict_all_see_its_changes():
    owner = {"a": 1, "b": 1}
    one, other = guard_of(("entry", owner, "a")), guard_of(("entry", owner, "b"), ("contents", owner, WHOLE))
    owner["b"] = 2
    assert (one.check(), other.check()) == (-1, 1)  # all that a dict holds is one place
    owner["b"] = 1
    assert (one.check(), other.check()) == (-1, -1)
    del other
    owner["a"] = 2
    assert one.check() == 0
    owner["a"] = 1
    third = guard_of(("entry", owner, "a"))
    del one
    owner["a"] = 3
    assert third.check() == 0


def test_of_several_changes_the_first_place_is_told_until_it_is_as_it_was():
    owners = [{"a": 1} for _ in range(5)]
    guard = guard_of(*(("entry", owner, "a") for owner in owners))
    for i in (3, 1, 4):
        owners[i]["a"] = 2
    for i in (1, 3, 4):
        assert guard.check() == i
        assert guard.check() == i
        owners[i]["a"] = 1
    assert guard.check() == -1


def test_changes_of_other_threads_are_seen():
    owner, one = {"a": 1}, Plain()
    guard = guard_of(("entry", owner, "a"), ("attribute", one, "rate"))

    def change(value, rate):
        owner["a"], one.rate = value, rate

    for value, rate, place in ((2, 0.5, 0), (1, 0.25, 1), (1, 0.5, -1)):
        thread = threading.Thread(target=change, args=(value, rate))
        thread.start()
        thread.join()
        assert guard.check() == place


def test_the_globals_of_a_module_that_is_loaded_again(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    source = tmp_path / "module_to_load_again.py"
    source.write_text("rate = 0.5\n")
    module = importlib.import_module("module_to_load_again")
    guard = guard_of(("entry", vars(module), "rate"))
    importlib.reload(module)
    assert guard.check() == -1
    source.write_text("rate = 0.125\n")
    importlib.reload(module)
    assert guard.check() == 0
    module.rate = 0.5
    assert guard.check() == -1
    del module.rate
    assert guard.check() == 0


def test_containers_that_others_of_the_same_content_replace_are_followed():
    owner = {"options": {"rate": 0.5, "sizes": [1, 2]}}
    guard = guard_of(
        ("entry", owner, "options"), ("contents", owner["options"], WHOLE), ("contents", owner["options"]["sizes"], WHOLE)
    )
    for _ in range(3):
        before = owner["options"]
        owner["options"] = {"rate": 0.5, "sizes": [1, 2]}
        assert guard.check() == -1
        before["rate"] = 7  # nobody reads it any more
        assert guard.check() == -1
        owner["options"]["rate"] = 0.25
        assert guard.check() >= 0
        owner["options"]["rate"] = 0.5
        assert guard.check() == -1
        owner["options"]["sizes"][1] = 3
        assert guard.check() >= 0
        owner["options"]["sizes"][1] = 2
        owner["options"] = {"rate": 0.75, "sizes": [1, 2]}
        assert guard.check() >= 0
        owner["options"] = before
        assert guard.check() >= 0
        before["rate"] = 0.5
        assert guard.check() == -1


# --- Objects ---


@pytest.mark.parametrize("kind", [Plain, Crowded, types.SimpleNamespace, torch.nn.Identity])
def test_attributes_of_an_object_however_they_are_stored(kind):
    one = kind()
    store(one, 0.5)
    guard = guard_of(("attribute", one, "rate"))
    for change in (
        lambda value: store(one, value),
        lambda value: setattr(one, "rate", value),
        lambda value: vars(one).update(rate=value),
        lambda value: vars(one).__setitem__("rate", value),
        lambda value: one.__setstate__({"rate": value}) if hasattr(one, "__setstate__") else store(one, value),
        lambda value: object.__setattr__(one, "rate", value),
    ):
        change(0.25)
        assert guard.check() == 0
        change(0.5)
        assert guard.check() == -1
    del one.rate
    assert guard.check() == 0
    store(one, 0.5)
    assert guard.check() == -1


@pytest.mark.parametrize("kind", [Plain, Crowded])
def test_an_object_with_another_dictionary(kind):
    one = kind()
    guard = guard_of(("attribute", one, "rate"))
    before = vars(one)
    for _ in range(3):
        one.__dict__ = {"rate": 0.5}
        assert guard.check() == -1
        store(one, 0.25)
        assert guard.check() == 0
        one.__dict__ = before
        assert guard.check() == -1
        before["rate"] = 0.75
        assert guard.check() == 0
        one.__dict__ = {"rate": 0.5}
        assert guard.check() == -1
        before["rate"] = 0.5
        one.__dict__ = before
        assert guard.check() == -1
    del one.__dict__
    assert guard.check() == 0
    store(one, 0.5)
    assert guard.check() == -1


def test_an_object_of_another_class():
    one = Plain()
    guard = guard_of(("attribute", one, "rate"))
    one.__class__ = Other
    assert guard.check() == 0
    store(one, 0.25)
    one.__class__ = Plain
    assert guard.check() == 0
    store(one, 0.5)
    assert guard.check() == -1


def test_objects_that_die_are_as_they_were_and_others_in_their_memory_are_others():
    for _ in range(4):
        owners = {i: Plain(size=i) for i in range(8)}
        places = [("entry", owners, i) for i in owners]
        guard = guard_of(*places, *(("attribute", one, "size") for one in owners.values()))
        loose = guard_of(*(("attribute", one, "size") for one in owners.values()))
        del owners[3]
        gc.collect()
        assert guard.check() == 3
        owners[3] = Plain(size=3)  # likely where the other was
        assert guard.check() == 3
        assert loose.check() == -1  # of what is dead nothing can be read
        assert loose.check() == -1
        owners[4].size = 7
        assert loose.check() >= 0
        owners.clear()
        assert guard.check() >= 0
        assert loose.check() == -1


def test_a_dictionary_that_outlives_its_object():
    one = Plain()
    dictionary = vars(one)
    guard = guard_of(("attribute", one, "rate"), ("entry", dictionary, "rate"))
    del one
    assert guard.check() == -1
    dictionary["rate"] = 0.25
    assert guard.check() >= 0
    dictionary["rate"] = 0.5
    assert guard.check() == -1


def test_attributes_of_classes():
    guard = guard_of(("class", Other, "rate_of_all"), ("class", Other, "__init__"))
    Plain.rate_of_all = 1
    assert guard.check() == 0
    Other.rate_of_all = 2
    del Plain.rate_of_all
    assert guard.check() == 0
    del Other.rate_of_all
    assert guard.check() == -1


# --- Functions, cells, lists, tensors ---


def test_parts_of_functions():
    function, other = function_of(2), function_of(3)
    guard = guard_of(("function", function, None))
    code, defaults, named = function.__code__, function.__defaults__, function.__kwdefaults__
    for _ in range(3):
        function.__code__ = changed_code(function)
        assert guard.check() == 0
        function.__code__ = code
        assert guard.check() == -1
        function.__defaults__ = (5,)
        assert guard.check() == 0
        function.__defaults__ = None
        assert guard.check() == 0
        function.__defaults__ = defaults
        assert guard.check() == -1
        function.__kwdefaults__ = {"named": 5}
        assert guard.check() == 0
        function.__kwdefaults__ = named
        assert guard.check() == -1
        other.__defaults__ = (9,)
        assert guard.check() == -1


def changed_code(function):
    return function.__code__.replace(co_name="changed")


def test_functions_that_die():
    owners = [function_of(i) for i in range(50)]
    guard = guard_of(*(("function", one, None) for one in owners))
    del owners[10:20]
    owners += [function_of(i) for i in range(50)]
    assert guard.check() == -1
    owners[0].__defaults__ = (7,)
    assert guard.check() == 0


def test_cells():
    value = 0.5
    one = Plain()

    def function():
        return value, one

    names = dict(zip(function.__code__.co_freevars, function.__closure__))
    guard = guard_of(("cell", names["value"], None), ("cell", names["one"], None), ("attribute", one, "rate"))
    for _ in range(3):
        value = float("0.5")  # another object that says the same
        assert guard.check() == -1
        assert guard.check() == -1
        value = 0.25
        assert guard.check() == 0
        value = 0.5
        before, one = one, None
        assert guard.check() == 1
        one = before
        assert guard.check() == -1
        one.rate = 1
        assert guard.check() == 2
        one.rate = 0.5
        assert guard.check() == -1
    del before
    one = Plain()  # where the other was, it may be
    assert guard.check() == 1


def test_entries_of_lists():
    owner = [Plain(), 0.5, "text", 10**9]
    guard = guard_of(("contents", owner, WHOLE), ("attribute", owner[0], "rate"))
    for i, value in ((1, float("0.5")), (3, int("1000000000"))):
        owner[i] = value
        assert guard.check() == -1
        assert guard.check() == -1
    owner.append(1)
    assert guard.check() == 0
    owner.pop()
    assert guard.check() == -1
    owner[1:3] = owner[2:0:-1]
    assert guard.check() == 0
    owner[1:3] = owner[2:0:-1]
    assert guard.check() == -1
    owner[0].rate = 7
    assert guard.check() == 1
    owner[0] = None
    owner[0] = Plain()  # where the other was, it may be
    assert guard.check() == 0


def test_tensors_that_want_gradients_or_are_swapped():
    layer = torch.nn.BatchNorm1d(3)
    guard = guard_of(("contents", layer._parameters, WHOLE), ("contents", layer._buffers, WHOLE))
    for tensor, place in ((layer.weight, 0), (layer.running_mean, 1)):
        for _ in range(2):
            tensor.requires_grad_(not tensor.requires_grad)
            assert guard.check() == place
            tensor.requires_grad_(not tensor.requires_grad)
            assert guard.check() == -1
    other = torch.nn.Parameter(torch.ones(3))
    torch._C._swap_tensor_impl(layer.weight, other)  # as torch.utils.swap_tensors() does
    assert guard.check() == 0
    torch._C._swap_tensor_impl(layer.weight, other)  # as torch.utils.swap_tensors() does
    assert guard.check() == -1
