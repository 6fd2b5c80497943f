"""What a guard of host reads compares at each call is never out of date, however it was changed.

From Python 3.12 on the interpreter tells of changes of dicts and functions, before that dicts have versions, and where neither
is to be had all is compared: the answers are the same.
"""

import gc
import importlib
import random
import subprocess
import sys
import textwrap
import threading
import types
import weakref

import pytest
import torch

from pianola._load import _C
from pianola.host_places import MISSING, parts_of_function

WHOLE = object()


def guard_of(*places):
    """Of (kind, owner, key), as they are; WHOLE: all that a container holds."""
    guard = _C.HostGuard()
    for kind, owner, key in places:
        guard.add(kind, owner, key, now(kind, owner, key), MISSING)
    guard.seal()
    assert guard.check() == -1
    assert guard.check() == -1
    return guard


def now(kind, owner, key):
    if kind == "contents":
        return tuple(owner.items()) if isinstance(owner, dict) else tuple(owner)
    if kind == "entry":
        return owner.get(key, MISSING)
    if kind == "attribute":
        return vars(owner).get(key, MISSING)
    if kind == "class":
        return getattr(owner, key, MISSING)
    if kind == "cell":
        return owner.cell_contents
    return parts_of_function(owner)


class Plain:
    """Its objects keep their attributes in themselves until somebody asks for their dictionary."""

    def __init__(self, rate=0.5, size=3):
        self.rate, self.size = rate, size


class Crowded:
    """With more attributes than objects keep in themselves."""

    def __init__(self):
        for i in range(60):
            setattr(self, f"number_{i}", i)
        self.rate = 0.5


class Other(Plain):
    pass


def function_of(value):
    def function(x, default=1, *, named=2):
        return x * value

    return function


def store(owner, value):
    owner.rate = value


for _ in range(200):  # as the interpreter stores where it has done so often
    store(Plain(), 1)
    store(Crowded(), 1)


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


# --- Looks ---


def test_what_a_look_changes_is_seen_by_the_next():
    owner, one, steps = {"a": 1}, Plain(), []

    def look():
        if steps:
            exec(steps.pop(), {"owner": owner, "one": one})
        return 1

    guard = _C.HostGuard()
    guard.add("value", Plain, look, 1, MISSING)
    guard.add("entry", owner, "a", 1, MISSING)
    guard.add("attribute", one, "rate", 0.5, MISSING)
    guard.seal()
    assert guard.check() == -1
    for change, back, place in (("owner['a'] = 2", "owner['a'] = 1", 1), ("one.rate = 2", "one.rate = 0.5", 2)):
        steps.append(change)
        guard.check()
        assert guard.check() == place
        exec(back)
        assert guard.check() == -1


class Curious:
    """A key that changes what it is asked about, once."""

    def __init__(self):
        self.change = None

    def __hash__(self):
        return hash("key")

    def __eq__(self, other):
        if self.change is not None:
            change, self.change = self.change, None
            change()
        return self is other


def test_what_changes_while_it_is_compared_is_seen_by_the_next_look():
    key, owner = Curious(), {}
    owner["key"], owner[key] = 1, 2
    guard = guard_of(("entry", owner, key), ("entry", owner, "a"))
    owner["b"] = 1
    key.change = lambda: owner.update({key: 3})
    guard.check()
    assert guard.check() == 0
    owner[key] = 2
    assert guard.check() == -1


# --- Lives ---


def test_a_guard_that_the_collector_finds_ends_what_it_follows():
    owner, functions = {"a": 1}, [function_of(1)]

    class Holder:
        pass

    guard = guard_of(("entry", owner, "a"), ("function", functions[0], None))
    holder = Holder()
    holder.me, holder.guard = holder, guard_of(("entry", owner, "a"), ("function", functions[0], None))
    owner["holder"] = holder
    gone = weakref.ref(holder.guard)
    del holder, owner["holder"]
    gc.collect()
    assert gone() is None
    owner["a"] = 2
    assert guard.check() == 0
    del guard
    owner["a"] = 3
    functions[0].__defaults__ = (3,)


def test_a_guard_keeps_neither_objects_nor_what_they_hold():
    one = Plain()
    one.me, one.inner = one, Plain()
    guard = guard_of(("attribute", one, "rate"), ("attribute", one, "inner"), ("attribute", one.inner, "rate"))
    one.guard = guard
    gone = weakref.ref(one), weakref.ref(one.inner)
    del one
    gc.collect()
    assert [one() for one in gone] == [None, None]
    assert guard.check() == -1


def test_guards_made_and_dropped_over_the_same_dicts():
    owners = [{"a": i} for i in range(50)]
    guards = []
    for i in range(200):
        guards.append(guard_of(*(("entry", owner, "a") for owner in owners)))
        if i % 3:
            guards.pop(random.Random(i).randrange(len(guards)))
    owners[7]["a"] = -1
    assert {guard.check() for guard in guards} == {7}


def test_any_changes_in_any_order():
    """A small world, changed at random: the guard says what a plain comparison says."""
    random_ = random.Random(3)
    for world in range(30):
        objects = [random_.choice((Plain, Crowded))() for _ in range(4)]
        dicts = [{"a": i, "b": 2} for i in range(4)] + [vars(objects[0])]
        functions = [function_of(i) for i in range(3)]
        lists = [[0, 1, 2], [objects[1], 5]]
        cells = [function.__closure__[0] for function in functions]
        keys = ("a", "b", "rate", "size")
        places = [("entry", owner, random_.choice(keys)) for owner in dicts]
        places += [("attribute", owner, key) for owner in objects for key in random_.sample(keys, 2)]
        places += [("function", one, None) for one in functions] + [("cell", one, None) for one in cells]
        places += [("contents", one, WHOLE) for one in (*lists, dicts[1])]
        before = [now(*place) for place in places]
        guard = guard_of(*places)
        for step in range(150):
            for _ in range(random_.choice((0, 1, 1, 2))):
                value = random_.choice((0, 1, 2, 0.5, 3))
                kind = random_.randrange(8)
                if kind == 0:
                    random_.choice(dicts)[random_.choice(keys)] = value
                elif kind == 1:
                    random_.choice(dicts).pop(random_.choice(keys), None)
                elif kind == 2:
                    store(random_.choice(objects), value)
                elif kind == 3:
                    setattr(random_.choice(objects), random_.choice(keys), value)
                elif kind == 4:
                    one = random_.choice(objects[1:])
                    one.__dict__ = dict(vars(one))
                elif kind == 5:
                    random_.choice(functions).__defaults__ = random_.choice(((1,), (2,), None))
                elif kind == 6:
                    random_.choice(cells).cell_contents = value
                else:
                    random_.choice(lists)[1] = value
            if random_.random() < 0.3:  # all as it was
                restore(places, before)
            changed = [not same(place, value) for place, value in zip(places, before)]
            found = guard.check()
            assert (found >= 0) == any(changed), (world, step, found, changed)
            assert found < 0 or changed[found] or any(changed)


def same(place, before):
    value = now(*place)
    return _C.same_value(value, before) or (place[0] == "function" and all(map(_C.same_value, value, before)))


def restore(places, before):
    for (kind, owner, key), value in zip(places, before):
        if kind == "contents":
            owner.clear()
            owner.update(value) if isinstance(owner, dict) else owner.extend(value)
        elif kind in ("entry", "attribute"):
            entries = owner if kind == "entry" else vars(owner)
            entries.pop(key, None) if value is MISSING else entries.update({key: value})
        elif kind == "cell":
            owner.cell_contents = value
        else:
            owner.__defaults__ = value[1]


# --- Interpreters ---


def run(script):
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the interpreter tells nobody of changes")
@pytest.mark.parametrize("taken", ["dicts", "functions", "both"])
def test_where_others_have_taken_all_watchers(taken):
    """All of the tests above, in an interpreter that has none left."""
    run(f"""
        import ctypes, sys, pytest, torch  # which needs some itself
        callback = ctypes.pythonapi.Py_IsInitialized  # whatever it is told, nothing is wrong
        def take(add):
            try:
                while add(callback) >= 0:
                    pass
            except RuntimeError:
                pass
        if {taken!r} != "functions":
            take(ctypes.pythonapi.PyDict_AddWatcher)
        if {taken!r} != "dicts":
            take(ctypes.pythonapi.PyFunction_AddWatcher)
        sys.exit(pytest.main([{__file__!r}, "-q", "-x", "-p", "no:cacheprovider", "-k", "not taken and not interpreter"]))
    """)


def test_the_interpreter_may_end_with_guards_alive():
    output = run("""
        import atexit, sys, threading, time
        from pianola._load import _C
        missing = object()
        class Holder: pass
        rate, holders = 0.5, []
        def function(x=1): return x
        def guard():
            one = _C.HostGuard()
            one.add("entry", globals(), "rate", rate, missing)
            one.add("entry", vars(sys.modules["torch"]), "float32", sys.modules["torch"].float32, missing)
            one.add("function", function, None, (function.__code__, function.__defaults__, None, None), missing)
            holder = Holder()
            one.add("attribute", holder, "guard", None, missing)
            holder.me = holder; holder.guard = None
            one.seal()
            assert one.check() == -1
            holder.guard = one
            return holder
        holders = [guard() for _ in range(50)]
        sys.modules["kept"] = guard()
        atexit.register(lambda kept=guard(): print(kept.guard.check()))
        class Late:
            def __init__(self): self.guard = guard().guard
            def __del__(self): self.guard.check()
        late = Late()
        def work():
            while True:
                guard().guard.check()
        threading.Thread(target=work, daemon=True).start()
        time.sleep(0.05)
        print("done")
    """)
    assert output.split()[0] == "done"
