"""Named random streams where activations are computed twice: the same bits as without, eagerly and captured."""

import pytest
import torch
import torch.utils.checkpoint

import pianola

STEPS = 5
reentrant_or_not = pytest.mark.parametrize("use_reentrant", [True, False])


class Block(torch.nn.Module):
    """Dropout that all ranks share, and one of this rank's own."""

    def __init__(self, tracker):
        super().__init__()
        self.tracker = tracker
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x):
        x = torch.nn.functional.dropout(self.linear(x), 0.3)
        with self.tracker.fork("rank"):
            x = torch.nn.functional.dropout(x, 0.3)
        return torch.tanh(x) * x  # saves what was dropped


class Once(torch.nn.Module):
    """Keeps all activations."""

    def __init__(self, block, use_reentrant=None):
        super().__init__()
        self.block = block
        self.use_reentrant = use_reentrant

    def forward(self, x):
        return self.block(x)


class Twice(Once):
    """Keeps none inside of the block, and computes them once more in the backward pass."""

    def forward(self, x):
        return self.block.tracker.checkpoint(self.block, x, use_reentrant=self.use_reentrant)


class InAFork(Twice):
    """The backward pass comes when the fork has ended."""

    def forward(self, x):
        with self.block.tracker.fork("other"):
            return super().forward(x)


class Nested(Twice):
    """Computes the second half even three times."""

    def forward(self, x):
        def both(x):
            return super(Nested, self).forward(self.block(x))

        return self.block.tracker.checkpoint(both, x, use_reentrant=self.use_reentrant)


def without_checkpoints(kind):
    """The same module, with all activations kept."""

    class Kept(kind):
        def __init__(self, block, use_reentrant=None):
            super().__init__(block, use_reentrant)
            block.tracker.checkpoint = lambda function, *args, use_reentrant: function(*args)

    return Kept


def new_tracker(device):
    torch.manual_seed(5)
    tracker = pianola.RngTracker(device)
    tracker.add("rank", 9)
    tracker.add("other", 10)
    return tracker


def random_states(device, tracker):
    generator = torch.cuda.default_generators[device.index] if device.type == "cuda" else torch.default_generator
    return [generator.get_state(), *tracker.state_dict().values()]


def eagerly(step, tracker, x):
    return lambda: step([x])


def iterated(step, tracker, x):
    iteration = pianola.FullIteration(step, warmup=1, generators=tracker.generators())
    return lambda: iteration([x])


def captured(step, tracker, x):
    graph = pianola.Graph(x.device)
    losses = []
    graph.capture(lambda: losses.append(step([x])), generators=tracker.generators())

    def replay():
        graph.replay()
        return losses[-1]

    return replay


def graphed(step, tracker, x):
    function = pianola.graphed(step, warmup=1, generators=tracker.generators())
    return lambda: function([x])


def train(device, kind, use_reentrant, make):
    """All that some steps leave behind."""
    tracker = new_tracker(device)
    first = torch.nn.Linear(16, 16)  # a reentrant checkpoint needs an input with a gradient
    model = torch.nn.Sequential(first, *(kind(Block(tracker), use_reentrant) for _ in range(2))).to(device)
    optimizer = pianola.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(4, 16, generator=torch.Generator().manual_seed(1)).to(device)

    def step(microbatches):
        optimizer.zero_grad()
        loss = model(microbatches[0]).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = make(step, tracker, x)
    seen = []
    for _ in range(STEPS):
        seen.append(run().clone())
        seen += [parameter.detach().clone() for parameter in model.parameters()] + random_states(device, tracker)
    return seen


def assert_equal(one, other):
    assert len(one) == len(other)
    for i, (a, b) in enumerate(zip(one, other)):
        assert torch.equal(a, b), i


@reentrant_or_not
@pytest.mark.parametrize("make", [eagerly, iterated, captured, graphed])
@pytest.mark.parametrize("kind", [Twice, InAFork, Nested])
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # the inner one of two, in the forward pass
def test_the_second_time_draws_the_same_numbers(device, kind, make, use_reentrant):
    assert_equal(train(device, kind, use_reentrant, make), train(device, without_checkpoints(kind), None, eagerly))


@reentrant_or_not
def test_other_draws_between_forward_and_backward_do_not_matter(device, use_reentrant):
    results = []
    for kind in (Once, Twice):
        tracker = new_tracker(device)
        model = kind(Block(tracker), use_reentrant).to(device)
        x = torch.ones(4, 16, device=device, requires_grad=True)
        loss = model(x).square().mean()
        drawn = [torch.rand(3, device=device)]
        with tracker.fork("rank"):
            drawn.append(torch.rand(3, device=device))
            loss.backward(retain_graph=True)  # even in a fork of the stream
            drawn.append(torch.rand(3, device=device))
        loss.backward()  # a third time
        drawn.append(torch.rand(3, device=device))
        results.append([x.grad, *(parameter.grad for parameter in model.parameters()), *drawn, *random_states(device, tracker)])
    assert_equal(*results)


@reentrant_or_not
def test_callables_of_two_graphs_draw_them_on_the_tape_and_are_refused_on_a_gpu(device, use_reentrant):
    """A CUDA graph of the backward pass does not know where the one of the forward pass stood."""
    results = []
    for kind in (Once, Twice):
        tracker = new_tracker(device)
        model = kind(Block(tracker), use_reentrant).to(device)
        sample = torch.ones(4, 16, device=device, requires_grad=True)
        if kind is Twice:
            capture = lambda: pianola.make_graphed_callables(model, (sample,), generators=tracker.generators())  # noqa: E731
            if device.type == "cuda":
                with pytest.raises(pianola.CaptureError, match="to a place that was taken in another capture, or in none"):
                    capture()
                return
            model = capture()
        seen = []
        for i in range(STEPS):
            x = torch.full((4, 16), 1.0 + i, device=device).requires_grad_()
            model.zero_grad()
            y = model(x)
            torch.rand(3, device=device)
            y.square().mean().backward()
            seen += [y.detach().clone(), x.grad.clone(), *(parameter.grad.clone() for parameter in model.parameters())]
        results.append(seen + random_states(device, tracker))
    assert_equal(*results)


def test_a_gpus_function_may_draw_on_the_cpu_as_well(device):
    tracker = new_tracker(device)
    drawn = []

    def function(x):
        drawn.append(torch.rand(3))
        return x * x

    x = torch.ones(3, device=device, requires_grad=True)
    y = tracker.checkpoint(function, x)
    torch.rand(3)
    state = torch.get_rng_state()
    y.sum().backward()
    assert len(drawn) == 2 and torch.equal(*drawn)
    assert torch.equal(torch.get_rng_state(), state)


@reentrant_or_not
def test_torchs_own_checkpoint_is_refused_where_it_would_draw_other_numbers(device, use_reentrant):
    tracker = new_tracker(device)
    block = Block(tracker).to(device)
    x = torch.ones(4, 16, device=device, requires_grad=True)

    def recomputed(function):
        return lambda x: torch.utils.checkpoint.checkpoint(function, x, use_reentrant=use_reentrant)

    def ours(function):
        return lambda x: tracker.checkpoint(function, x, use_reentrant=use_reentrant)

    message = r"'rank' is forked while torch\.utils\.checkpoint recomputes activations(.|\n)*use RngTracker\.checkpoint\(\)"
    for function in (recomputed(block), ours(recomputed(block))):
        y = function(x)
        states = random_states(device, tracker)
        with pytest.raises(pianola.UsageError, match=message):
            y.sum().backward()
        assert_equal(random_states(device, tracker), states)
    graph = pianola.Graph(device)
    with pytest.raises(pianola.UsageError, match=message):
        graph.capture(lambda: recomputed(block)(x).sum().backward(), generators=tracker.generators())


def test_a_backward_pass_may_draw_from_a_stream_for_itself(device):
    tracker = new_tracker(device)

    def noise(gradient):
        with tracker.fork("rank"):
            return gradient + torch.rand_like(gradient)

    x = torch.ones(3, device=device, requires_grad=True)
    x.register_hook(noise)
    x.sum().backward()
    with new_tracker(device).fork("rank"):
        assert torch.equal(x.grad, 1 + torch.rand(3, device=device))


@reentrant_or_not
def test_an_error_of_the_function_leaves_the_streams_where_they_were(device, use_reentrant):
    tracker = new_tracker(device)
    calls = []

    def function(x):
        with tracker.fork("rank"):
            y = torch.nn.functional.dropout(x * x, 0.5)
            calls.append(y)
            if len(calls) == 2:
                raise ValueError("the second time")
        return y * y

    y = tracker.checkpoint(function, torch.ones(3, device=device, requires_grad=True), use_reentrant=use_reentrant)
    states = random_states(device, tracker)
    with pytest.raises(ValueError, match="the second time"):
        y.sum().backward()
    assert_equal(random_states(device, tracker), states)


def test_takes_torchs_arguments_and_needs_no_gradient(device):
    tracker = new_tracker(device)
    x = torch.ones(3, device=device, requires_grad=True)
    y = tracker.checkpoint(lambda x, *, factor: {"y": x * x * factor}, x, factor=3, determinism_check="none")["y"]
    y.sum().backward()
    assert x.grad.eq(6).all()
    with torch.no_grad():
        assert tracker.checkpoint(torch.square, x).eq(1).all()


def test_a_tensor_of_another_device_is_refused():
    tracker = new_tracker(torch.device("cpu"))
    with pytest.raises(pianola.UsageError, match="given a tensor on meta, and the RngTracker is on cpu"):
        tracker.checkpoint(torch.square, torch.ones(3, device="meta"))
