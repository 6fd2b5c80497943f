"""What a call reads once, or of what it makes and drops itself: no later call is compared with that."""

import gc
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


class Layer:
    def __init__(self):
        self.is_filled = False

    def update(self, keys):
        if self.is_filled:
            keys = torch.cat([self.keys, keys])
        self.keys, self.is_filled = keys, True
        return keys


class Cache:
    """Made anew by each call, with what it fills lazily, as those of language models are."""

    def __init__(self):
        self.layers = []

    def update(self, keys, index):
        while len(self.layers) <= index:
            self.layers.append(Layer())
        return self.layers[index].update(keys)


class Outputs(dict):
    """A dict that stores into itself."""

    def put(self, name, value):
        self[name] = value


def test_what_a_step_stores_into_what_it_makes_is_dropped_with_it(device):
    hidden = torch.nn.Linear(4, 4, device=device)

    @pianola.graphed
    @torch.no_grad()
    def step(x):
        cache, outputs = Cache(), Outputs()
        cache.update(hidden(x), 0)
        outputs.put("keys", cache.update(x, 0))
        return outputs["keys"] * 2

    for _ in range(6):
        x = torch.randn(3, 4, device=device)
        with torch.no_grad():
            assert torch.equal(step(x), torch.cat([hidden(x), x]) * 2)
        assert not [one for one in gc.get_objects() if type(one) in (Cache, Layer, Outputs)]
    assert [one.replays for one in step.info().signatures] == [3]


class MomentumWithStatePerParameter(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, dict(lr=0.1))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if len(state) == 0:
                    state["momentum"] = torch.zeros_like(p)
                state["momentum"].mul_(0.9).add_(p.grad)
                p.add_(state["momentum"], alpha=-group["lr"])


def test_parameters_that_are_keys_are_named_without_a_look_at_their_values(device):
    models = [torch.nn.Linear(4, 4).to(device) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())

    def step_of(model):
        optimizer = MomentumWithStatePerParameter(model.parameters())

        def step(x):
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            return loss

        return step

    eager, graphed = step_of(models[0]), pianola.graphed(step_of(models[1]))
    for _ in range(8):
        x = torch.randn(3, 4, device=device)
        assert torch.equal(graphed(x), eager(x))
    assert all(torch.equal(one, other) for one, other in zip(models[0].parameters(), models[1].parameters()))
    assert sum(one.replays for one in graphed.info().signatures) >= 4
    assert not [one.reason for one in graphed.info().signatures if one.reason]


def test_a_parameter_that_is_a_key_is_told_by_its_shape(device):
    model = torch.nn.Linear(4, 4).to(device)
    counts = {parameter: {"calls": 0} for parameter in model.parameters()}
    said = []

    @pianola.graphed(on_fallback=said.append)
    def step(x):
        for parameter in model.parameters():
            counts[parameter]["calls"] += 1
        return model(x)

    for _ in range(12):
        step(torch.randn(3, 4, device=device))
    assert any("counts[a Parameter of shape [4, 4]]" in one for one in said), said
