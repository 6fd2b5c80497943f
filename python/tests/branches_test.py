"""Parallel branches: what comes out is what eager computes, and info() tells what became of them."""

import json
from xml.etree import ElementTree

import pytest
import torch
import torch.utils.checkpoint

import pianola
from twins import assert_same, assert_same_state, batches, run_both, twins

STEPS = 6


class Towers(torch.nn.Module):
    """Four towers that have nothing to do with each other, and their sum."""

    def __init__(self, width=16, dropout=0.1):
        super().__init__()
        self.towers = torch.nn.ModuleList(
            torch.nn.Sequential(
                torch.nn.Linear(width, 2 * width), torch.nn.GELU(), torch.nn.Dropout(dropout), torch.nn.Linear(2 * width, width)
            )
            for _ in range(4)
        )

    def forward(self, x):
        return torch.stack([tower(x) for tower in self.towers]).sum(0)


def sgd(module):
    return torch.optim.SGD(module.parameters(), lr=1e-2)


def train(module, optimizer, x):
    optimizer.zero_grad()
    loss = module(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def assert_asked_for(info, device, lanes=4):
    assert info.branches == lanes
    assert info.units > 0, info.reason
    assert info.rebuilt == (info.reason == "")
    if device.type == "cpu":
        assert not info.rebuilt


def captured_step(device, **options):
    """(twin, module, input, loss, graph): a training step of a module with branches, captured, and a twin for eager."""
    twin, module = twins(Towers(), device)
    optimizer = sgd(module)
    x = torch.zeros(8, 16, device=device)
    loss = torch.zeros((), device=device)
    graph = pianola.Graph(device)
    graph.capture(lambda: loss.copy_(train(module, optimizer, x)), **options)
    return twin, module, x, loss, graph


def assert_replays_train_as_eager(device, **options):
    """The graph, after the comparison."""
    twin, module, x, loss, graph = captured_step(device, **options)
    optimizer = sgd(twin)
    data = batches(STEPS, (8, 16), device)

    def replay(batch):
        x.copy_(batch)
        graph.replay()
        return loss.clone()

    expected, actual = run_both(
        device, lambda: [train(twin, optimizer, batch) for batch in data], lambda: [replay(batch) for batch in data]
    )
    for one, other in zip(expected, actual):
        assert_same("loss", one, other)
    assert_same_state(twin, module)
    return graph


def test_a_captured_training_step_equals_eager_over_steps(device):
    graph = assert_replays_train_as_eager(device, branches=4)
    assert_asked_for(graph.info().branches, device)


def test_hooks_on_saved_tensors_run_in_their_place(device):
    """They run inside operations, and what they touch is among nobody's arguments."""
    shelf = torch.zeros(64, 8, 32, device=device)  # memory that only the hooks know

    class Shelved(Towers):
        def forward(self, x):
            places = iter(range(64))

            def pack(tensor):
                if tensor.dim() != 2 or tensor.shape[0] != 8:
                    return tensor
                place = next(places)
                shelf[place, :, : tensor.shape[1]].copy_(tensor)
                return (place, tensor.shape[1])

            def unpack(packed):
                if isinstance(packed, torch.Tensor):
                    return packed
                return shelf[packed[0], :, : packed[1]].clone()

            with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
                return super().forward(x)

    eager, graphed = twins(Shelved(dropout=0.0), device)
    x = torch.zeros(8, 16, device=device)
    optimizers = [sgd(eager), sgd(graphed)]
    graph = pianola.Graph(device)
    graph.capture(lambda: train(graphed, optimizers[1], x), branches=4)
    assert any(obstacle.cause == "barrier" for obstacle in graph.info().branches.obstacles) or graph.info().branches.reason
    for batch in batches(STEPS, (8, 16), device):
        x.copy_(batch)
        train(eager, optimizers[0], x)
        graph.replay()
    assert_same_state(eager, graphed)


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputed_blocks_equal_eager(device, reentrant):
    class Recomputed(Towers):
        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(super().forward, x.requires_grad_(), use_reentrant=reentrant)

    eager, graphed = twins(Recomputed(dropout=0.0), device)
    x = torch.zeros(8, 16, device=device)
    optimizers = [sgd(eager), sgd(graphed)]
    graph = pianola.Graph(device)
    graph.capture(lambda: train(graphed, optimizers[1], x), branches=4)
    for batch in batches(STEPS, (8, 16), device):
        with torch.no_grad():
            x.copy_(batch)
        train(eager, optimizers[0], x)
        graph.replay()
    assert_same_state(eager, graphed)


def test_info_tells_what_became_of_the_branches(device):
    *_, graph = captured_step(device, branches=3)
    info = graph.info().branches
    assert_asked_for(info, device, lanes=3)
    assert 1 < info.lanes <= 3
    assert info.nodes >= info.units >= 20
    assert info.edges_before > 0 and info.proved_pairs > 0
    assert 0 < info.modelled_critical_us <= info.modelled_rebuilt_us < info.modelled_serial_us
    assert info.critical_nodes > 0
    for without in (info.without_reuse_us, info.without_workspaces_us, info.without_barriers_us):
        assert 0 < without <= info.modelled_critical_us
    assert info.plan_us >= 0 and info.rebuild_us >= 0 and info.trial_us >= 0
    assert (info.serial_us > 0) == (info.rebuilt_us > 0) == (info.floor_us > 0)
    assert info.warnings == [] or all(isinstance(warning, str) for warning in info.warnings)
    for obstacle in info.obstacles:
        assert obstacle.cause in ("reuse of memory", "workspace", "barrier")
        assert obstacle.dependencies > 0 and obstacle.op
    assert str(info).startswith("Branches\n")
    assert json.loads(info.report().to_json())["lanes"] == info.lanes
    assert json.loads(graph.info().report().to_json())["branches"]["lanes"] == info.lanes


def test_without_branches_there_is_nothing_to_tell(device):
    for branches in (0, 1):
        *_, graph = captured_step(device, branches=branches)
        assert graph.info().branches is None
        with pytest.raises(pianola.UsageError, match="captured without 'branches'"):
            graph.dump_lanes("lanes.svg")


def test_the_lanes_are_drawn(device, tmp_path):
    *_, graph = captured_step(device, branches=4)
    path = tmp_path / "lanes.svg"
    graph.dump_lanes(path)
    titles = [title.text for title in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}title")]
    assert len([title for title in titles if " at " in title]) == graph.info().branches.units
    with pytest.raises(pianola.UsageError, match="cannot write"):
        graph.dump_lanes(tmp_path / "none" / "lanes.svg")


def test_more_lanes_than_there_can_be_are_fewer_and_a_warning(device):
    *_, graph = captured_step(device, branches=12)
    info = graph.info().branches
    assert info.branches == 8
    assert any("12" in warning and "8" in warning for warning in info.warnings)


@pytest.mark.parametrize(
    "options, text",
    [
        (dict(branches=-1), "branches must be 0 or more, got -1"),
        (dict(branches=4, parallel=pianola.ParallelOptions(workspaces=-2)), "workspaces must be 0 or more, got -2"),
        (dict(branches=4, parallel=pianola.ParallelOptions(reuse_delay=-3)), "reuse_delay must be 0 or more, got -3"),
    ],
)
def test_options_out_of_range_are_refused_by_each_way_to_capture(device, options, text):
    x = torch.ones(4, device=device)
    linear = torch.nn.Linear(4, 4).to(device)
    with pytest.raises(pianola.UsageError, match=text):
        pianola.Graph(device).capture(lambda: x.mul(2), **options)
    with pytest.raises(pianola.UsageError, match=text):
        with pianola.graph(pianola.CUDAGraph(), device=device, **options):
            x.mul(2)
    with pytest.raises(pianola.UsageError, match=text):
        pianola.make_graphed_callables(linear, (x,), **options)
    with pytest.raises(pianola.UsageError, match=text):
        pianola.graphed(linear, **options)
    pianola.Graph(device).capture(lambda: x.mul(2))  # nothing is left behind


def test_branches_need_the_trace(device):
    x = torch.ones(4, device=device)
    with pytest.raises(pianola.UsageError, match="needs the trace"):
        pianola.Graph(device).capture(lambda: x.mul(2), branches=4, trace=False)


def test_parallel_options_say_what_they_are_and_cannot_be_changed():
    options = pianola.ParallelOptions(workspaces=2, self_check=False)
    assert (options.workspaces, options.reuse_delay, options.split_kernels, options.self_check) == (2, 16, False, False)
    assert options.memory_limit == 1 << 30
    assert repr(options) == (
        "pianola.ParallelOptions(workspaces=2, reuse_delay=16, split_kernels=False, memory_limit=1073741824, "
        "self_check=False, warmed_up=False)"
    )
    with pytest.raises(AttributeError):
        options.workspaces = 3
    with pytest.raises(TypeError):
        pianola.ParallelOptions(2)
    with pytest.raises(TypeError):
        pianola.Graph("cpu").capture(lambda: None, branches=4, parallel={"workspaces": 2})


@pytest.mark.parametrize(
    "parallel",
    [
        pianola.ParallelOptions(workspaces=1),
        pianola.ParallelOptions(reuse_delay=0),
        pianola.ParallelOptions(split_kernels=True),
        pianola.ParallelOptions(memory_limit=0),
        pianola.ParallelOptions(self_check=False),
    ],
    ids=["one_workspace", "no_reuse_delay", "split_kernels", "no_memory", "no_self_check"],
)
def test_each_option_keeps_the_numbers_of_eager(device, parallel):
    assert_replays_train_as_eager(device, branches=4, parallel=parallel)


def test_a_with_block_on_branches_equals_eager(device, tmp_path):
    module = Towers().to(device).eval()
    x = torch.zeros(8, 16, device=device)
    side = pianola.Stream(device)
    side.wait_stream(pianola.current_stream(device))
    with pianola.stream(side), torch.no_grad():
        module(x)
    pianola.current_stream(device).wait_stream(side)
    g = pianola.CUDAGraph()
    with torch.no_grad(), pianola.graph(g, device=device, branches=4):
        y = module(x)
    for batch in batches(3, (8, 16), device):
        x.copy_(batch)
        g.replay()
        with torch.no_grad():
            assert_same("output", module(batch), y)
    assert_asked_for(g.info().branches, device)
    g.dump_lanes(tmp_path / "lanes.svg")
    assert (tmp_path / "lanes.svg").read_text().startswith("<svg")


def test_capture_begin_takes_branches():
    g = pianola.CUDAGraph()
    x = torch.ones(4, 4)
    g.capture_begin(device="cpu", branches=2)
    y = (x @ x) + (x * 2) @ x
    g.capture_end()
    g.replay()
    assert torch.equal(y, (x @ x) + (x * 2) @ x)
    assert g.info().branches.branches == 2


@pytest.mark.parametrize("grad", ["accumulate", "clone", "alias"])
def test_graphed_callables_on_branches_train_as_eager(device, grad):
    eager, module = twins(Towers(), device)
    sample = torch.zeros(8, 16, device=device, requires_grad=True)
    module = pianola.make_graphed_callables(module, (sample,), grad=grad, branches=4)
    optimizers = [torch.optim.SGD(one.parameters(), lr=1e-2, momentum=0.9) for one in (eager, module)]
    data = [batch.requires_grad_() for batch in batches(STEPS, (8, 16), device)]

    def run(one, optimizer):
        return [train(one, optimizer, batch) for batch in data]

    expected, actual = run_both(device, lambda: run(eager, optimizers[0]), lambda: run(module, optimizers[1]))
    for one, another in zip(expected, actual):
        assert_same("loss", one, another)
    assert_same_state(eager, module)
    branches = module.forward.info().branches
    assert len(branches) == 2, "forward and backward"
    for info in branches:
        assert_asked_for(info, device)


def assert_trained_alike(step, module, eager_step, eager, device):
    """@return  What a graphed step knows of its one signature, which was replayed."""
    data = batches(3 * STEPS, (8, 16), device)
    expected, actual = run_both(device, lambda: [eager_step(batch) for batch in data], lambda: [step(batch) for batch in data])
    for one, another in zip(expected, actual):
        assert_same("loss", one, another)
    assert_same_state(eager, module)
    (signature,) = step.info().signatures
    assert signature.replays > 0
    return signature


def test_graphed_on_branches_trains_as_eager(device):
    eager, module = twins(Towers(), device)
    ours, other = (torch.optim.SGD(one.parameters(), lr=1e-2, momentum=0.9) for one in (module, eager))
    reasons = []

    @pianola.graphed(branches=4, parallel=pianola.ParallelOptions(reuse_delay=8), on_fallback=reasons.append)
    def step(x):
        return train(module, ours, x)

    signature = assert_trained_alike(step, module, lambda x: train(eager, other, x), eager, device)
    assert reasons == []
    assert len(signature.branches) >= 1
    for info in signature.branches:
        assert_asked_for(info, device)
    assert "Parallel branches" in str(step.info())


PLAIN = [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RAdam, torch.optim.RMSprop]


@pytest.mark.parametrize("optimizer", PLAIN, ids=lambda one: one.__name__)
def test_lanes_are_tried_for_plain_optimizers_without_asking(optimizer, device):
    """Adam counts its steps in memory of the host, which the trial of a graph does not touch."""
    eager, module = twins(Towers(), device)
    ours, other = (optimizer(one.parameters(), lr=1e-2) for one in (module, eager))
    reasons = []
    step = pianola.graphed(lambda x: train(module, ours, x), on_fallback=reasons.append)
    signature = assert_trained_alike(step, module, lambda x: train(eager, other, x), eager, device)
    assert reasons == []
    for one, another in zip(ours.state.values(), other.state.values()):
        assert one.keys() == another.keys() and all(torch.equal(torch.as_tensor(one[key]), torch.as_tensor(another[key])) for key in one)
    if device.type == "cuda":
        (info,) = signature.branches
        assert info.automatic and info.units > 0
        assert info.rebuilt or "faster" in info.reason, info.reason


def test_graphed_inference_on_branches_equals_eager(device):
    eager, module = twins(Towers().eval(), device)
    pianola.graphed(module, branches=4)
    with torch.no_grad():
        for batch in batches(2 * STEPS, (8, 16), device):
            assert_same("output", eager(batch), module(batch))
    (signature,) = module.forward.info().signatures
    assert signature.replays > 0
    (info,) = signature.branches
    assert_asked_for(info, device)
