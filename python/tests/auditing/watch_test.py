"""How the audit watches: the profile hook, and what a step can reach."""

import collections
import functools
import sys
import types
import weakref

import pytest
import torch

import pianola
from pianola._audit.graphed_modules import _line_with_keyword
from pianola._audit.marks import has_other_members, mark_of, same
from pianola._audit.reach import Walk, roots_of
from marked_steps import State, findings_of, inputs, marked
from twins import MLP


def test_another_profiler_is_put_back(device):
    events = []

    def profiler(frame, event, argument):
        events.append(event)

    sys.setprofile(profiler)
    try:
        pianola.audit(lambda x: x * 2, batches=inputs(device))
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(None)
    assert events


def test_a_step_may_set_a_profiler_of_its_own(device):
    def step(x):
        sys.setprofile(None)
        return x * 2

    assert not findings_of(pianola.audit(step, batches=inputs(device)))
    assert sys.getprofile() is None


def test_the_tracer_is_put_back(device):
    count = 0

    def step(x):
        nonlocal count
        count += 1
        return x * 2

    def tracer(frame, event, argument):
        return None

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        pianola.audit(step, batches=inputs(device), trial=False)
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)


def test_paths_of_modules(device):
    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList([torch.nn.Sequential(Reads()) for _ in range(2)])

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    class Reads(torch.nn.Module):
        def forward(self, x):
            x.tolist()
            return x * x.sum().item()

    model = Outer().to(device)
    report = pianola.audit(lambda x: model(x), batches=inputs(device), trial=False)
    assert {(one.rule, one.module) for one in report.findings if one.rule in ("PG101", "PG103")} == {
        ("PG101", "model.layers.0.0"),
        ("PG103", "model.layers.0.0"),
    }


module_wide = {"weight": torch.zeros(3)}


def uses_module_wide():
    return module_wide["weight"]


def test_what_a_step_can_reach():
    model = MLP(layers=2)
    optimizer = torch.optim.SGD([{"params": model.parameters(), "lr": 0.1}], lr=torch.tensor(0.2), momentum=0.9)
    state = State(names={"a": [torch.ones(1)]})
    optimizer.state[model.layers[0].weight] = {"momentum_buffer": torch.zeros(16, 16)}

    def step(first, second=torch.zeros(1)):
        return model, optimizer, state, uses_module_wide()

    bound = functools.partial(step, torch.ones(2))
    walk = Walk(roots_of(bound))
    tensors = dict(walk.tensors())
    assert tensors.keys() >= {
        "args[0]", "second", "model.layers.0.weight", "model.layers.1.bias", "state.names['a'][0]", "module_wide['weight']",
        "optimizer.state[model.layers.0.weight]['momentum_buffer']",
    }  # fmt: skip
    assert walk.marks["state.scale"].value == 1.0 and walk.marks["optimizer.param_groups[0]['lr']"].value == 0.1
    assert walk.modules[model.layers[1]] == "model.layers.1" and walk.optimizers == {optimizer: "optimizer"}
    assert not [path for path in walk.marks if "_hooks" in path]


def test_where_a_keyword_is_used():
    def calls(f):
        f(1)
        f(2, create_graph=True)  # PG1007

    place = _line_with_keyword("create_graph", [calls.__code__])
    assert ("PG1007", place.line) in marked(test_where_a_keyword_is_used) and place.function == "calls"


def test_a_look_keeps_nothing_alive():
    holder = types.SimpleNamespace(tensor=torch.zeros(3))
    walk = Walk(roots_of(lambda: holder))
    assert [path for path, _ in walk.tensors()] == ["holder.tensor"]
    before = walk.marks["holder.tensor"]
    holder.tensor = torch.zeros(3)
    assert not list(walk.tensors()) and before != Walk(roots_of(lambda: holder)).marks["holder.tensor"]


@pytest.mark.parametrize(
    "before, after, moved",
    [
        ([1, 2], [1, 2, 3], True),
        ([1, 2], [1, 3], False),
        ({"a": 1}, {"a": 2}, False),
        ({"a": 1}, {"b": 1}, True),
        ({1, 2}, {1, 3}, True),
        (collections.deque([1, 2]), collections.deque([2, 3]), True),
    ],
)
def test_members_of_containers(before, after, moved):
    assert has_other_members(mark_of(before), mark_of(after)) == moved


def made_in_place_of(freed, make):
    """What make() gives, at the address of an object that was freed where that comes back; it stays freed for long enough."""
    others = []
    for _ in range(1000):
        others.append(make())
        if id(others[-1]) == freed:
            break
    return others.pop()


@pytest.mark.parametrize("make", [lambda: torch.zeros(1), lambda: float("0.5"), lambda: (torch.zeros(1), None)])
def test_what_takes_the_place_of_a_freed_entry_has_not_moved(make):
    entries = [make(), make()]
    before, first = mark_of(entries), id(entries[0])
    entries[0] = None
    entries[1] = made_in_place_of(first, make)
    entries[0] = make()
    assert not has_other_members(before, mark_of(entries))


def test_lists_that_moved_inside_a_list_are_other_members():
    entries = [[torch.zeros(1)], [torch.zeros(1)]]
    before = mark_of(entries)
    entries.reverse()
    assert has_other_members(before, mark_of(entries))


def test_a_generator_that_comes_by_an_address_again_has_moved_on():
    addresses = []

    def take():
        entry = made_in_place_of(addresses[0] if addresses else None, lambda: torch.zeros(1))
        addresses.append(id(entry))
        return entry

    def entries():
        while True:
            entry = take()
            yield
            del entry

    generator = entries()
    next(generator)
    before = mark_of(generator)
    next(generator)
    assert not same(before, mark_of(generator))


def test_a_look_at_a_generator_keeps_nothing_alive():
    def entries():
        entry = torch.zeros(1)
        yield weakref.ref(entry)
        del entry
        yield

    generator = entries()
    entry = next(generator)
    mark_of(generator)
    next(generator)
    assert entry() is None
