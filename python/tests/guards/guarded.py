"""Guards of what lies in dicts, objects, classes, cells, functions and lists, for the tests of _C.HostGuard."""

from pianola._load import _C
from pianola._host_places import MISSING, parts_of_function

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
