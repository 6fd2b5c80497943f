"""A guard of host reads while it is looked at, among others, to the end of what it guards, of itself and of the interpreter."""

import gc
import random
import subprocess
import sys
import textwrap
import types
import weakref
from pathlib import Path

import pytest
import torch

import pianola
from guarded import WHOLE, Crowded, Plain, function_of, guard_of, now, store
from pianola._load import _C
from pianola._host_places import MISSING, hold
from pianola._weak_references import weakly

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


class Holder:
    pass


def holder_of(kind):
    """(place of what it holds, a function that puts something else there)"""
    if kind == "entry":
        owner = {"held": Plain()}
        return (kind, owner, "held"), lambda value: owner.update(held=value)
    if kind == "attribute":
        owner = Holder()
        owner.held = Plain()
        return (kind, owner, "held"), lambda value: setattr(owner, "held", value)
    if kind == "class":
        owner = type("Made", (), {"held": Plain()})
        return (kind, owner, "held"), lambda value: setattr(owner, "held", value)
    if kind == "cell":
        owner = types.CellType(Plain())
        return (kind, owner, None), lambda value: setattr(owner, "cell_contents", value)
    owner = [1, Plain()]
    return ("contents", owner, WHOLE), lambda value: owner.__setitem__(1, value)


def held_by(place):
    value = now(*place)
    return value[1] if place[0] == "contents" else value


def test_any_deaths_in_any_order():
    """Objects in holders of all kinds die at random, and others take their memory."""
    random_ = random.Random(5)
    for world in range(60):
        holders = [holder_of(kind) for kind in ("entry", "attribute", "class", "cell", "list") * 2]
        random_.shuffle(holders)
        first = [weakref.ref(held_by(place)) for place, _ in holders]
        kept = [one() for one in first if random_.random() < 0.3]
        places = [place for place, _ in holders] + [("attribute", one(), "rate") for one in first]
        random_.shuffle(places)
        guard = guard_of(*places)
        del places
        for step in range(80):
            i = random_.randrange(len(holders))
            place, put = holders[i]
            kind = random_.randrange(6)
            if kind == 0:
                put(Plain(rate=random_.choice((0.5, 0.25))))
            elif kind == 1:
                put(None)
            elif kind == 2 and held_by(place) is not None:
                held_by(place).rate = random_.choice((0.5, 0.25))
            elif kind == 3 and first[i]() is not None:
                put(first[i]())
            elif kind == 4 and kept:
                kept.pop()
            else:
                for (_, put_back), one in zip(holders, first):
                    if one() is not None:
                        one().rate = 0.5
                        put_back(one())
            as_held = all(one() is not None and held_by(place) is one() for (place, _), one in zip(holders, first))
            as_set = all(one() is None or one().rate == 0.5 for one in first)
            assert (guard.check() < 0) == (as_held and as_set), (world, step)


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

TESTS = [str(Path(__file__).with_name(name)) for name in ("host_guard_test.py", "host_guard_lives_test.py")]


def run(script):
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the interpreter tells nobody of changes")
@pytest.mark.parametrize("taken", ["dicts", "functions", "both"])
def test_where_others_have_taken_all_watchers(taken):
    """All of these tests, in an interpreter that has none left."""
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
        sys.exit(pytest.main([*{TESTS!r}, "-q", "-x", "-p", "no:cacheprovider", "-k", "not taken and not interpreter"]))
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


# --- Streams and events of CUDA, whose weak references torch does not clear ---


class Watcher:
    def __init__(self, watched):
        self.watched = watched

    def knows(self, other):
        return self.watched is not None and other is not self.watched and other is not None


def test_streams_and_events_are_held_themselves():
    for one in (torch.Stream(stream_id=0, device_index=0, device_type=1), torch.cuda.Event()):
        assert hold(one) is one
        with pytest.raises(TypeError, match="no weak reference to"):
            weakly(one)


def test_a_guard_holds_events_themselves():
    owner = Watcher(torch.cuda.Event())
    guard = _C.HostGuard()
    guard.add("attribute", owner, "watched", owner.watched, MISSING)
    guard.seal()
    assert guard.check() == -1
    owner.watched = torch.cuda.Event()
    churn = [bytearray(size) for size in (56, 64, 72, 80) for _ in range(1000)]
    assert guard.check() == 0 and churn


def test_a_step_that_makes_events_and_streams(device):
    """As fully_shard does."""
    make = (torch.cuda.Event, torch.cuda.Stream, torch.cuda.current_stream) if device.type == "cuda" else (torch.cuda.Event,)

    def step(x):
        watchers = [Watcher(one()) for one in make for _ in range(50)]
        for one in make:
            assert all(watcher.knows(one()) for watcher in watchers)
        return x * 2

    graphed = pianola.graphed(step, on_fallback=lambda reason: None)
    for number in range(8):
        x = torch.full((3,), float(number), device=device)
        assert torch.equal(graphed(x), x * 2)
        churn = [bytearray(size) for size in (56, 64, 72, 80) for _ in range(1000)]  # where those were
    assert churn
