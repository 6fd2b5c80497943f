"""What a call reads once, or of what it makes and drops itself: no later call is compared with that."""

import sys
import typing
import weakref

import pytest
import torch

import pianola


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package whose import reads what changes later, and a name that a step reads."""
    (tmp_path / "slow_to_import.py").write_text(
        "import counted\n"
        "class Options:\n"
        "    chosen = [counted.imports['slow'] for _ in range(3)]\n"
        "def choose():\n"
        "    counted.imports['slow'] += 1\n"
        "    return {'scale': 2.0, **counted.imports}\n"
        "chosen = choose()\n"
        "scale = chosen['scale']\n"
    )
    (tmp_path / "counted.py").write_text("imports = {'slow': 0}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in ("slow_to_import", "counted"):
        sys.modules.pop(name, None)


def test_what_an_import_reads_is_none_of_the_steps(device, package):
    def step(x):
        import slow_to_import

        return x * slow_to_import.scale

    graphed = pianola.graphed(step)
    x = torch.ones(4, device=device)
    for _ in range(6):
        assert torch.equal(graphed(x), x * 2)
    import counted
    import slow_to_import

    counted.imports["slow"] = 5
    assert torch.equal(graphed(x), x * 2)
    (signature,) = graphed.info().signatures
    assert signature.replays == 4 and not graphed.info().unfollowed
    slow_to_import.scale = 3.0
    assert torch.equal(graphed(x), x * 3)


class Frame:
    def __init__(self):
        self.handles = {}
        self.layers = [Part(), Part()]
        self.holders = [weakref.ref(self.layers[0])]


class Part:
    def __init__(self):
        self.seen = {}


def recompute(frame, x):
    for number, part in enumerate(frame.layers):
        x = x * 2 if number in part.seen else x + 1
        part.seen[number] = x
    frame.handles.setdefault("count", len(frame.layers))
    first = frame.holders[0]()
    assert first is not None and 0 in first.seen
    return x * frame.handles["count"]


def test_what_a_step_makes_and_drops_no_later_call_is_compared_with(device):
    """Dicts, lists and cells have no weak references, so that a look at them alone would keep them alive."""

    def step(x):
        frame, total = Frame(), 0

        def add(number):
            nonlocal total
            total += number
            return total

        y = recompute(frame, x)
        return y * add(1) + add(2)

    graphed = pianola.graphed(step)
    x = torch.ones(4, device=device)
    for _ in range(6):
        x.add_(1)
        assert torch.equal(graphed(x), step(x))
    (signature,) = graphed.info().signatures
    assert signature.replays == 3


def test_what_a_step_makes_and_keeps_is_compared(device):
    kept = {"frame": None}

    def step(x):
        frame = kept["frame"]
        return x if frame is None else x * len(frame.handles)

    graphed = pianola.graphed(step)
    x = torch.ones(4, device=device)
    for call in range(12):
        if call == 4:
            kept["frame"] = Frame()
        if call == 8:
            kept["frame"].handles["one"] = 1
        assert torch.equal(graphed(x), step(x)), call


@torch.no_grad()
def doubled(x):
    return typing.cast(typing.List[torch.Tensor], [x * 2])[0]


def test_what_the_watch_itself_calls_is_none_of_the_steps(device):
    """It was: all functions of torch's that contextlib made, and what typing goes by."""
    graphed = pianola.graphed(doubled)
    x = torch.ones(4, device=device)
    for _ in range(graphed.calls_before_replay + 1):
        assert torch.equal(graphed(x), x * 2)
    (known,) = graphed.states._known
    readers = {place.where.partition(":")[0] for state in known.states for place in state.places}
    assert readers and not readers & {"contextlib.py", "checkpoint.py", "typing_extensions.py"}, readers
