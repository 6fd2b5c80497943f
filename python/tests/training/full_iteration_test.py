"""pianola.FullIteration: whole training iterations, replayed, against the same code run eagerly."""

import copy
import functools
import gc
import itertools
import os
import subprocess
import sys
import weakref

import pytest
import torch
import torch.utils.checkpoint

import pianola
from pianola import _flat_function
from pianola._host_reads import HostReads
from twins import MLP, batches


class Trainee:
    """A model with its optimizer, and what an iteration of it does."""

    def __init__(self, device, optimizer=None):
        torch.manual_seed(3)
        self.model = MLP().to(device)
        parameters = self.model.parameters()
        self.optimizer = optimizer(parameters) if optimizer else pianola.optim.AdamW(parameters, lr=1e-2)

    def train(self, microbatches):
        self.optimizer.zero_grad()
        total = 0
        for x in microbatches:
            loss = self.model(x).square().mean() / len(microbatches)
            loss.backward()
            total = total + loss.detach()
        self.optimizer.step()
        return {"loss": total}

    def state(self):
        return [tensor.detach().clone() for tensor in self.model.parameters()]


def data(device, count=10, microbatches=3):
    flat = batches(count * microbatches, (4, 16), device)
    return [flat[i * microbatches : (i + 1) * microbatches] for i in range(count)]


def assert_equal(one, other):
    assert len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other))


def test_equals_eager(device):
    eager, trained = Trainee(device), Trainee(device)
    iteration = pianola.FullIteration(trained.train, warmup=2)
    for batch in data(device):
        expected = eager.train(batch)["loss"]
        assert torch.equal(iteration(batch)["loss"], expected)
        assert_equal(trained.state(), eager.state())
    (info,) = iteration.info().signatures
    assert (info.stage, info.state, info.eager_calls, info.replays) == ("training", "captured", 2, 8)


def unchanged_by_hooks(module, x):
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, lambda packed: packed):
        return module(x)


def computed_twice(module, x):
    return torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False)


@pytest.mark.parametrize("run", [unchanged_by_hooks, computed_twice])
def test_activations_that_hooks_on_saved_tensors_see_are_not_kept_by_the_step(device, run):
    def hooked(trainee):
        model = trainee.model
        trainee.model = lambda x: run(torch.nn.Sequential(model, torch.nn.Tanh()), run(torch.nn.Tanh(), x))
        return trainee, model.parameters()

    (eager, expected), (trained, parameters) = hooked(Trainee(device)), hooked(Trainee(device))
    expected, parameters = list(expected), list(parameters)
    iteration = pianola.FullIteration(trained.train, warmup=1)
    for batch in data(device, count=5):
        assert torch.equal(eager.train(batch)["loss"], iteration(batch)["loss"])
        assert_equal(parameters, expected)
    (info,) = iteration.info().signatures
    assert info.state == "captured"


def test_equals_eager_with_torchs_own_optimizer(device):
    def adam(parameters):
        return torch.optim.AdamW(parameters, lr=torch.tensor(1e-2, device=device), fused=True, capturable=device.type == "cuda")

    eager, trained = Trainee(device, adam), Trainee(device, adam)
    iteration = pianola.FullIteration(trained.train, warmup=2)
    for batch in data(device):
        expected = eager.train(batch)["loss"]
        assert torch.equal(iteration(batch)["loss"], expected)
        assert_equal(trained.state(), eager.state())


def test_pianolas_scaler_clipping_and_optimizer_are_torchs(device):
    """50 iterations, two of them with infinite gradients, captured; against torch's optimizer and scaler, eagerly."""

    def theirs():
        torch.manual_seed(3)
        model = MLP().to(device)
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=torch.tensor(1e-2, device=device), fused=True, capturable=device.type == "cuda"
        )
        return model, optimizer, torch.amp.GradScaler(device.type, init_scale=1024.0, growth_interval=8)

    def ours():
        torch.manual_seed(3)
        model = MLP().to(device)
        optimizer = pianola.optim.AdamW(model.parameters(), lr=1e-2)
        return model, optimizer, pianola.GradScaler(device, init_scale=1024.0, growth_interval=8)

    def step_of(model, optimizer, scaler, clip):
        def step(microbatches):
            optimizer.zero_grad()
            total = torch.zeros((), device=device)
            for x, factor in microbatches:
                loss = torch.nn.functional.dropout(model(x), 0.1).square().mean() * factor
                scaler.scale(loss).backward()
                total = total + loss.detach()
            scaler.unscale_(optimizer)
            clip(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            return total

        return step

    flat = batches(200, (4, 16), device)
    factors = [torch.full((), float("inf") if i in (46, 121) else 1.0, device=device) for i in range(200)]
    steps = [list(zip(flat[i : i + 4], factors[i : i + 4])) for i in range(0, 200, 4)]

    results = []
    for make, clip, graphed in (
        (theirs, torch.nn.utils.clip_grad_norm_, False),
        (ours, pianola.clip_grad_norm_, True),
    ):
        model, optimizer, scaler = make()
        step = step_of(model, optimizer, scaler, clip)
        iteration = pianola.FullIteration(step) if graphed else step
        torch.manual_seed(11)
        seen = []
        for batch in steps:
            seen.append(iteration(batch).clone())
            seen += [parameter.detach().clone() for parameter in model.parameters()]
        state = optimizer.state_dict()["state"]
        seen += [state[i][name].clone() for i in sorted(state) for name in ("step", "exp_avg", "exp_avg_sq")]
        seen.append(torch.tensor(scaler.state_dict()["scale"]))
        seen.append(torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state())
        results.append(seen)
    expected, actual = results
    assert len(expected) == len(actual)
    for one, other in zip(expected, actual):
        assert torch.allclose(one, other, rtol=0, atol=0, equal_nan=True) if one.is_floating_point() else torch.equal(one, other)


def test_reads_static_inputs_in_buckets(device):
    eager, trained = Trainee(device), Trainee(device)
    inputs = pianola.StaticInputs(device, buckets=pianola.Buckets([2, 4, 8], dim=0))
    iteration = pianola.FullIteration(trained.train, warmup=1)
    for rows in (3, 8, 2, 5, 1, 7, 4):
        x = batches(1, (rows, 16), device)[0]
        inputs.load([x])
        padded = torch.zeros(inputs.bucket, 16, device=device)
        padded[:rows] = x
        expected = eager.train([padded])["loss"]
        assert torch.equal(iteration(inputs)["loss"], expected)
        assert_equal(trained.state(), eager.state())
    assert {info.state for info in iteration.info().signatures} == {"captured"}
    assert len(iteration.info().signatures) == 3


def test_validation_has_graphs_of_its_own(device):
    trained = Trainee(device)

    def validate(microbatches):
        with torch.no_grad():
            return trained.model(microbatches[0]).square().mean()

    iteration = pianola.FullIteration(trained.train, validate, warmup=1, outputs="clone")
    for batch in data(device, count=4):
        iteration(batch)
        seen = iteration(batch, stage="validation")
        assert torch.equal(seen, validate(batch))
    assert [(info.stage, info.replays) for info in iteration.info().signatures] == [("training", 3), ("validation", 3)]


def test_named_streams_are_drawn_from(device):
    results = []
    for graphed in (False, True):
        tracker = pianola.RngTracker(device)
        tracker.add("rank", 5)
        x = torch.ones(64, device=device)

        def step(microbatches):
            y = torch.nn.functional.dropout(microbatches[0], 0.5)
            with tracker.fork("rank"):
                return y + 10 * torch.nn.functional.dropout(microbatches[0], 0.5)

        iteration = pianola.FullIteration(step, warmup=1, generators=tracker.generators()) if graphed else step
        torch.manual_seed(0)
        seen = [iteration([x]).clone() for _ in range(5)]
        results.append(seen + [tracker.state_dict()["rank"]])
    assert_equal(*results)


def test_what_changes_on_the_host_is_refused_or_runs_eagerly(device):
    model = MLP().to(device)
    rates = iter(0.5**i for i in range(100))

    def step(microbatches):
        model.zero_grad()
        loss = model(microbatches[0]).square().mean()
        loss.backward()
        rate = next(rates)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= parameter.grad * rate
        return loss.detach()

    iteration = pianola.FullIteration(step)
    first = data(device, microbatches=1)
    for batch in first[:3]:
        iteration(batch)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(pianola.UsageError, match="takes the next entry of rates; a replay would not do it again"):
        iteration(first[3])
    assert_equal(list(model.state_dict().values()), list(before.values()))

    reasons = []
    iteration = pianola.FullIteration(step, eager_fallback=True, on_fallback=reasons.append)
    for batch in first:
        iteration(batch)
    assert len(reasons) == 1 and iteration.info().signatures[0].state == "eager"


def expect_interrupt_and_then_replays(step, kind, device, before_second_call=lambda: None):
    """Ctrl-C in the second call, which captures, comes out; the next one captures."""
    reasons = []
    if kind == "graphed":
        function = graphed = pianola.graphed(step, warmup=1, on_fallback=reasons.append)
    else:
        graphed = pianola.FullIteration(
            lambda batch: step(batch[0]), warmup=1, eager_fallback="eager" in kind, on_fallback=reasons.append
        )
        function = lambda x: graphed([x])
    x = torch.ones(2, device=device)
    function(x)
    before_second_call()
    with pytest.raises(KeyboardInterrupt):
        function(x)
    for _ in range(3):
        assert function(x).tolist() == [2.0, 2.0]
    signature = graphed.info().signatures[0]
    assert signature.state == "captured" and signature.replays == 3 and not reasons


@pytest.mark.parametrize("kind", ["graphed", "iteration", "iteration with eager_fallback"])
def test_an_interrupt_of_a_capture_comes_out_and_the_next_call_captures(kind, device):
    count = functools.partial(next, itertools.count())  # of runs; nothing that Python shows

    def step(x):
        if count() == 1:
            raise KeyboardInterrupt
        return x + 1

    expect_interrupt_and_then_replays(step, kind, device)


@pytest.mark.parametrize("kind", ["graphed", "iteration with eager_fallback"])
@pytest.mark.parametrize("owner, name", [(_flat_function, "apart"), (HostReads, "_follow_frame")])
def test_an_interrupt_of_what_watches_a_capture_comes_out_too(kind, owner, name, device, monkeypatch):
    armed, watches = [], getattr(owner, name)

    def interrupted(*args):
        if armed:
            armed.clear()
            raise KeyboardInterrupt
        return watches(*args)

    def arm():
        monkeypatch.setattr(owner, name, interrupted)
        armed.append(True)

    def step(x):
        return x + 1

    expect_interrupt_and_then_replays(step, kind, device, arm)


def test_bad_arguments(device):
    with pytest.raises(pianola.UsageError, match="warmup must be 1 or more, got 0"):
        pianola.FullIteration(lambda batch: batch, warmup=0)
    iteration = pianola.FullIteration(lambda batch: batch)
    with pytest.raises(pianola.UsageError, match="there is no validation step"):
        iteration([torch.ones(2)], stage="validation")
    with pytest.raises(pianola.UsageError, match="stage must be one of 'training', 'validation', got 'test'"):
        iteration([torch.ones(2)], stage="test")
    inputs = pianola.StaticInputs(device, buckets=pianola.Buckets([2, 4, 8], dim=0))
    inputs.load([torch.ones(2, 3)])
    small = pianola.FullIteration(lambda batch: batch[0] * 2, warmup=1, capacity=2)
    small(inputs)
    with pytest.raises(pianola.UsageError, match="there are 3 buckets, and room for 2 graphs"):
        small(inputs)


def test_a_configuration_is_checked_first():
    config = pianola.CudaGraphConfig(cuda_graph_impl="full_iteration", cuda_graph_warmup_steps=1)
    iteration = pianola.FullIteration(lambda batch: batch[0] * 2, config=config)
    for _ in range(2):
        iteration([torch.ones(2)])
    assert iteration.info().signatures[0].replays == 1
    with pytest.raises(pianola.ConfigError, match="CF1"):
        wrong = pianola.CudaGraphConfig(cuda_graph_impl="full_iteration", cuda_graph_modules=["attn"])
        pianola.FullIteration(lambda batch: batch, config=wrong)


def test_follows_each_iteration_and_can_be_reset(device):
    trained = Trainee(device)
    followed = []
    iteration = pianola.FullIteration(trained.train, warmup=1, after_iteration=followed.append)
    for batch in data(device, count=3):
        iteration(batch)
    assert followed == ["training"] * 3
    iteration.reset("training")
    assert not iteration.info().signatures
    assert "Full iteration" in str(iteration.info())


def test_lets_go_of_all_that_it_captured(device):
    trained = Trainee(device)
    iteration = pianola.FullIteration(trained.train, warmup=1)
    for batch in data(device, count=3):
        iteration(batch)
    gone = [weakref.ref(iteration), weakref.ref(trained), weakref.ref(trained.model)]
    del iteration, trained
    gc.collect()
    assert [one() for one in gone] == [None] * 3


RUN = """
import hashlib, sys, torch, pianola
device, command, file = torch.device(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 16)).to(device)
optimizer = pianola.optim.AdamW(model.parameters(), lr=1e-2)
schedule = pianola.optim.LearningRateSchedule(optimizer, pianola.optim.LearningRate.cosine(50), [1e-2])
scaler = pianola.GradScaler(device, init_scale=1024.0, growth_interval=8)
tracker = pianola.RngTracker(device)
tracker.add("rank", 9)
data = torch.randn(50, 4, 2, 16, generator=torch.Generator().manual_seed(1)).to(device)

def step(microbatches):
    optimizer.zero_grad()
    for x in microbatches:
        with tracker.fork("rank"):
            y = model(x)
        scaler.scale(y.square().mean()).backward()
    scaler.unscale_(optimizer)
    pianola.clip_grad_norm_(model.parameters(), 0.5)
    scaler.step(optimizer)
    scaler.update()
    return y.sum()

iteration = pianola.FullIteration(step, generators=tracker.generators())
parts = dict(model=model, optimizer=optimizer, schedule=schedule, scaler=scaler, tracker=tracker)
first, last = 0, 50
if command == "continue":
    saved = torch.load(file, map_location=device, weights_only=True)
    for name, part in parts.items():
        state = saved[name]
        part.load_state_dict({key: value.cpu() for key, value in state.items()} if name == "tracker" else state)
    (torch.cuda.set_rng_state if device.type == "cuda" else torch.set_rng_state)(saved["generator"].cpu())
    first = 20
for i in range(first, 20 if command == "save" else last):
    iteration(list(data[i]))
    schedule.step()
if command == "save":
    generator = torch.cuda.get_rng_state() if device.type == "cuda" else torch.get_rng_state()
    torch.save({"generator": generator, **{name: part.state_dict() for name, part in parts.items()}}, file)
else:
    tensors = [*model.parameters(), *(value for _, value in optimizer.state()), optimizer.learning_rate(), scaler.current_scale,
               *tracker.state_dict().values(), torch.cuda.get_rng_state() if device.type == "cuda" else torch.get_rng_state()]
    print(hashlib.sha256(b"".join(one.detach().cpu().numpy().tobytes() for one in tensors)).hexdigest())
"""


def test_goes_on_in_a_new_process(device, tmp_path):
    script, file = tmp_path / "run.py", tmp_path / "step20.pt"
    script.write_text(RUN)

    def run(command):
        ran = subprocess.run([sys.executable, script, str(device), command, file], capture_output=True, text=True,
                             env={**os.environ, "OMP_NUM_THREADS": "1"})
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    whole = run("whole")
    run("save")
    assert run("continue") == whole
