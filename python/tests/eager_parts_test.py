"""Parts of a graphed step that stay eager: `pianola.eager`."""

import weakref

import pianola
import pytest
import torch
import torch.nn.functional as F
from surroundings import double_precision
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from twins import assert_same, assert_same_state

STEPS = 50


def randn(*shape, seed, device):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device)


class Run:
    """A program, eager or graphed. `make(device)` gives its step, and the modules whose state is compared."""

    def __init__(self, make, device, graphed):
        torch.manual_seed(0)
        step, self.model = make(device)
        self.step = pianola.graphed(step) if graphed else step


def assert_equal(make, device, inputs=None, steps=STEPS, replays=None):
    """Step by step, bit for bit; and all calls but the first three were replays."""
    eager, ours = Run(make, device, False), Run(make, device, True)
    inputs = inputs or (lambda i: (randn(16, 8, seed=i, device=device), randn(16, 1, seed=1000 + i, device=device)))
    for i in range(steps):
        torch.manual_seed(i)
        wanted = eager.step(*inputs(i))
        torch.manual_seed(i)
        assert_same(f"step {i}", ours.step(*inputs(i)), wanted)
        assert_same_state(ours.model, eager.model)
    assert sum(one.replays for one in ours.step.info().signatures) >= (steps - 3 if replays is None else replays), ours.step.info()
    return eager, ours


# --- Programs as people write them ---


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.middle, self.head = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 1)
        self.norm = nn.BatchNorm1d(32)

    def forward(self, x):
        return self.head(torch.relu(self.middle(self.norm(torch.relu(self.first(x))))))


def test_a_read_in_the_forward_pass(device):
    def make(device):
        model = Mlp().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        @pianola.eager
        def clipped(hidden):
            largest = hidden.detach().abs().max().item()
            return hidden * (4.0 / largest) if largest > 4.0 else hidden * 1.0

        def step(x, y):
            optimizer.zero_grad()
            hidden = clipped(torch.relu(model.first(x)) * 3)
            loss = F.mse_loss(model.head(torch.relu(model.middle(model.norm(hidden)))), y)
            loss.backward()
            optimizer.step()
            return loss

        return step, model

    assert_equal(make, device)


def test_a_loss_that_is_logged_between_forward_and_backward(device):
    def make(device):
        model = Mlp().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
        model.lines = []

        @pianola.eager
        def log(name, value, count=None):
            model.lines.append((name, count, value.item()))

        def step(x, y, count):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            log("loss", loss, count=count)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            log("norm", norm, count=count + 1)
            return loss

        return step, model

    def inputs(i):
        return randn(16, 8, seed=i, device=device), randn(16, 1, seed=1000 + i, device=device), 7 * i + 100

    eager, ours = assert_equal(make, device, inputs, replays=STEPS - 6)
    assert ours.model.lines == eager.model.lines, "each once, in order, with the numbers of its call"
    assert len(ours.model.lines) == 2 * STEPS


class SparseMoe(nn.Module):
    """Tokens go to the two experts that the router scores highest; how many go to each the host reads."""

    def __init__(self, size, experts):
        super().__init__()
        self.gate = nn.Linear(size, experts, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(size, 2 * size), nn.SiLU(), nn.Linear(2 * size, size)) for _ in range(experts))

    @pianola.eager
    def dispatch(self, tokens, weights, chosen):
        result = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            token, place = (chosen == number).nonzero(as_tuple=True)
            result = result.index_add(0, token, expert(tokens[token]) * weights[token, place, None])
        return result

    def forward(self, tokens):
        weights, chosen = self.gate(tokens).softmax(-1).topk(2)
        return tokens + self.dispatch(tokens, weights / weights.sum(-1, keepdim=True), chosen)


def moe(device):
    model = nn.Sequential(nn.Embedding(50, 16), SparseMoe(16, 4), nn.LayerNorm(16), SparseMoe(16, 4), nn.Linear(16, 50)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(words, following):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(words), following)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return step, model


def words(i, device):
    generator = torch.Generator().manual_seed(i)
    return tuple(torch.randint(0, 50, (24,), generator=generator).to(device) for _ in range(2))


def test_experts_whose_tokens_the_host_counts(device):
    assert_equal(moe, device, lambda i: words(i, device))


def test_microbatches_that_go_through_the_same_part(device):
    def make(device):
        step, model = moe(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

        def accumulated(*batches):
            optimizer.zero_grad()
            total = 0
            for i in range(0, len(batches), 2):
                loss = F.cross_entropy(model(batches[i]), batches[i + 1]) / 2
                loss.backward()
                total = total + loss.detach()
            optimizer.step()
            return total

        return accumulated, model

    assert_equal(make, device, lambda i: (*words(2 * i, device), *words(2 * i + 1, device)), steps=20)


def test_a_part_under_autocast(device):
    def make(device):
        model = Mlp().to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        middle = pianola.eager(lambda hidden: model.middle(hidden) if hidden.isfinite().all().item() else hidden)

        def step(x, y):
            optimizer.zero_grad()
            with torch.autocast(device.type, dtype=torch.bfloat16):
                loss = F.mse_loss(model.head(torch.relu(middle(torch.relu(model.first(x))))).float(), y)
            loss.backward()
            optimizer.step()
            return loss

        return step, model

    assert_equal(make, device)


def test_random_numbers_in_a_part_and_around_it():
    def make(device):
        model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 16), nn.Dropout(0.3), nn.Linear(16, 1), nn.Dropout(0.3))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        part = pianola.eager(lambda hidden: model[3](model[2](hidden)) if hidden.isfinite().all().item() else hidden)

        def step(x, y):
            optimizer.zero_grad()
            loss = F.mse_loss(model[5](model[4](part(model[1](model[0](x))))), y)
            loss.backward()
            optimizer.step()
            return loss

        return step, model

    assert_equal(make, torch.device("cpu"))


def test_inference(device):
    def make(device):
        model = Mlp().eval().to(device)

        @pianola.eager
        def kept(hidden):
            return hidden if hidden.sum().item() > 0 else hidden.flip(-1)

        @torch.no_grad()
        def predict(x):
            return model.head(kept(torch.relu(model.first(x))))

        return predict, model

    assert_equal(make, device, lambda i: (randn(4, 8, seed=i, device=device),))


class Outside:
    """The model is graphed, and the backward pass comes from outside."""

    def __init__(self, device, graphed, part):
        torch.manual_seed(0)
        self.model = Mlp().eval().to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        part = pianola.eager(part)

        def forward(x):
            return self.model.head(torch.relu(part(self.model, torch.relu(self.model.first(x)))))

        self.forward = pianola.graphed(forward) if graphed else forward

    def step(self, x, y):
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.forward(x), y)
        loss.backward()
        self.optimizer.step()
        return loss


def assert_equal_outside(device, part):
    eager, ours = Outside(device, False, part), Outside(device, True, part)
    for i in range(20):
        x, y = randn(16, 8, seed=i, device=device), randn(16, 1, seed=1000 + i, device=device)
        assert_same(f"step {i}", ours.step(x, y), eager.step(x, y))
        assert_same_state(ours.model, eager.model)
    return ours.forward.info().signatures


def test_a_backward_pass_outside(device):
    def part(model, hidden):
        return hidden * (2.0 if hidden.sum().item() > 100 else 1.0) + hidden.flip(0)

    assert sum(one.replays for one in assert_equal_outside(device, part)) >= 15


def test_a_backward_pass_outside_of_a_part_with_parameters(device):
    def part(model, hidden):
        return model.middle(hidden) * (2.0 if hidden.sum().item() > 100 else 1.0)

    (signature,) = assert_equal_outside(device, part)
    assert "which stays eager, uses parameters, and its backward pass is not part of the graphed function" in signature.reason


def test_results_in_containers_and_none(device):
    def make(device):
        model = Mlp().to(device)

        @pianola.eager
        def split(given, *, scale):
            total = given["x"].sum().item()
            return {"scaled": (given["x"] * scale, None), "total": torch.tensor(total, device=device)}

        @torch.no_grad()
        def step(x):
            parts = split({"x": torch.relu(model.first(x))}, scale=2.0)
            assert parts["scaled"][1] is None
            return model.middle(parts["scaled"][0]) + parts["total"]

        return step, model

    assert_equal(make, device, lambda i: (randn(4, 8, seed=i, device=device),), steps=12)


def test_a_part_calls_another_part(device):
    def make(device):
        model = Mlp().to(device)
        inner = pianola.eager(lambda x: x * (2.0 if x.sum().item() > 0 else 3.0))
        outer = pianola.eager(lambda x: inner(x) + (1.0 if x.max().item() > 1 else 0.0))

        @torch.no_grad()
        def step(x):
            return model.first(outer(x))

        return step, model

    assert_equal(make, device, lambda i: (randn(4, 8, seed=i, device=device),), steps=12)


def test_outside_of_a_graphed_step_it_is_the_function_itself():
    @pianola.eager
    def twice(x):
        """Doc."""
        return [2 * x, "anything"]

    assert twice.__name__ == "twice" and twice.__doc__ == "Doc."
    assert twice(4) == [8, "anything"]


def test_a_graph_captured_by_hand(device):
    model = Mlp().eval().to(device)
    seen = []

    @pianola.eager
    def halved(hidden):
        seen.append(hidden.sum().item())
        return hidden / 2

    x, y = randn(4, 8, seed=0, device=device), torch.zeros(4, 32, device=device)
    graph = pianola.Graph(device)

    def step():
        with torch.no_grad():
            y.copy_(torch.relu(halved(model.first(x))))

    graph.capture(step, warmup=2)
    assert len(seen) == 2, "a capture runs no part that stays eager"
    for i in range(3):
        x.copy_(randn(4, 8, seed=i, device=device))
        graph.replay()
        assert_same(f"replay {i}", y, torch.relu(model.first(x).detach() / 2))
    assert len(seen) == 5


# --- What is refused ---


def small_step(part, device):
    model = nn.Linear(8, 8).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @pianola.graphed
    def step(x):
        optimizer.zero_grad()
        loss = part(model(x)).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def test_a_part_that_returns_no_tensor(device):
    step = small_step(pianola.eager(lambda hidden: hidden.sum().item()), device)
    with pytest.raises(pianola.UsageError, match="<lambda>, which stays eager, returns float, which a graph cannot be given"):
        step(randn(4, 8, seed=0, device=device))


def test_a_part_that_writes_its_argument(device):
    step = small_step(pianola.eager(lambda hidden: hidden.detach().mul_(2)), device)
    with pytest.raises(pianola.UsageError, match="which stays eager, writes its argument 0 in place"):
        step(randn(4, 8, seed=0, device=device))


def test_a_part_that_is_not_given_what_it_differentiates(device):
    model = nn.Linear(8, 8).to(device)

    @pianola.graphed
    def step(x):
        hidden = model(x)
        loss = pianola.eager(lambda one: (one * hidden).sum())(x)
        loss.backward()
        return loss

    with pytest.raises(pianola.UsageError, match="uses a tensor with history that it was not given.*\n.*pass it as an argument"):
        step(randn(4, 8, seed=0, device=device))


def test_too_many_numbers(device):
    part = pianola.eager(lambda hidden, *numbers: hidden * sum(numbers))
    step = small_step(lambda hidden: part(hidden, *range(9)), device)
    with pytest.raises(pianola.UsageError, match="is given 9 numbers, more than 8"):
        step(randn(4, 8, seed=0, device=device))


def test_a_result_of_another_shape_in_a_replay(device):
    rows = [4] * 5 + [3]
    part = pianola.eager(lambda hidden: hidden[: rows.pop(0)])
    step = small_step(part, device)
    for i in range(5):
        step(randn(4, 8, seed=i, device=device))
    with pytest.raises(pianola.UsageError, match=r"returned \(a Float tensor of shape \[3, 8\]\) in a replay, and \(a Float tensor of shape \[4, 8\]\)"):
        step(randn(4, 8, seed=5, device=device))


def test_a_parameter_that_gets_no_gradient_in_a_replay(device):
    used = [True] * 5 + [False]
    other = nn.Linear(8, 8).to(device)
    part = pianola.eager(lambda hidden: other(hidden) if used.pop(0) else hidden * 2)
    step = small_step(part, device)
    for i in range(5):
        step(randn(4, 8, seed=i, device=device))
    with pytest.raises(pianola.UsageError, match="gives other gradients in a replay than when the step was captured"):
        step(randn(4, 8, seed=5, device=device))


def test_a_read_in_a_hook_of_the_backward_pass(device):
    seen = {}

    def make(device):
        model = Mlp().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        values = seen.setdefault(len(seen), [])

        @pianola.eager
        def note(gradient):
            values.append(gradient.abs().max().item())

        @pianola.eager
        def clipped(gradient):
            return gradient * min(1.0, 0.01 / gradient.norm().item())

        def step(x, y):
            optimizer.zero_grad()
            hidden = torch.relu(model.first(x))
            hidden.register_hook(lambda gradient: note(gradient))
            hidden.register_hook(lambda gradient: clipped(gradient))
            loss = F.mse_loss(model.head(torch.relu(model.middle(model.norm(hidden)))), y)
            loss.backward()
            optimizer.step()
            return loss

        return step, model

    assert_equal(make, device)
    assert seen[0] == seen[1]


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_what_a_part_raises_comes_out_and_the_next_call_is_right(device, kind):
    def make(device):
        model = Mlp().to(device)
        optimizer = kind(model.parameters(), lr=0.1)
        model.calls = 0

        @pianola.eager
        def check(loss):
            model.calls += 1
            if model.calls == 8:
                raise ArithmeticError("the loss went away")

        def step(x, y):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            check(loss)
            loss.backward()
            optimizer.step()
            return loss

        return step, model

    eager, ours = Run(make, device, False), Run(make, device, True)
    for i in range(12):
        x, y = randn(16, 8, seed=i, device=device), randn(16, 1, seed=1000 + i, device=device)
        if i == 7:
            for one in (eager, ours):
                with pytest.raises(ArithmeticError, match="the loss went away"):
                    one.step(x, y)
        else:
            assert_same(f"step {i}", ours.step(x, y), eager.step(x, y))
        assert_same_state(ours.model, eager.model)


def test_a_capture_without_a_run_before(device):
    x = randn(4, 8, seed=0, device=device)
    part = pianola.eager(lambda one: one * 2)
    with pytest.raises(pianola.CaptureError, match="which stays eager, is called in the recording, and not in the run before"):
        pianola.Graph(device).capture(lambda: x.copy_(part(x)), warmup=0)


def test_what_cannot_be_called():
    with pytest.raises(pianola.UsageError, match="was given int, which cannot be called"):
        pianola.eager(3)


def test_graphed_callables_whose_part_has_parameters(device):
    model = Mlp().eval().to(device)
    middle = pianola.eager(lambda hidden: model.middle(hidden))
    with pytest.raises(pianola.UsageError, match="uses parameters, and its backward pass is not part of the graphed function"):
        pianola.make_graphed_callables(lambda x: middle(model.first(x)), (randn(4, 8, seed=0, device=device),))


def test_graphed_callables(device):
    torch.manual_seed(0)
    model = Mlp().eval().to(device)
    doubled = pianola.eager(lambda hidden: hidden * (2.0 if hidden.sum().item() > 100 else 1.0))

    def forward(x):
        return model.head(torch.relu(doubled(torch.relu(model.first(x)))))

    graphed = pianola.make_graphed_callables(forward, (randn(16, 8, seed=0, device=device),))
    for i in range(5):
        x, y = randn(16, 8, seed=i, device=device) * i, randn(16, 1, seed=1000 + i, device=device)
        gradients = []
        for function in (forward, graphed):
            model.zero_grad()
            F.mse_loss(function(x), y).backward()
            gradients.append([p.grad.clone() for p in (*model.first.parameters(), *model.head.parameters())])
        for one, other in zip(*gradients):
            assert_same(f"step {i}", one, other)


def test_two_backward_passes_through_one_part(device):
    def make(device):
        model = Mlp().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        middle = pianola.eager(lambda hidden: model.middle(hidden) * (2.0 if hidden.sum().item() > 100 else 1.0))

        def step(x, y):
            optimizer.zero_grad()
            hidden = middle(torch.relu(model.first(x)))
            F.mse_loss(model.head(hidden), y).backward(retain_graph=True)
            loss = hidden.square().mean()
            loss.backward()
            optimizer.step()
            return loss

        return step, model

    assert_equal(make, device, steps=12)


def test_a_part_keeps_nothing_behind_its_backward_pass(device):
    kept = []

    def make(device):
        model = Mlp().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        @pianola.eager
        def middle(hidden):
            result = model.middle(hidden)
            kept.append(weakref.ref(result))
            return result * 1.0

        def step(x, y):
            optimizer.zero_grad()
            loss = F.mse_loss(model.head(middle(torch.relu(model.first(x)))), y)
            loss.backward()
            optimizer.step()
            return loss

        return step, model

    assert_equal(make, device, steps=12)
    assert all(one() is None for one in kept)


def trained(device, step):
    """A step of a small model that is given what `step(model, optimizer, x)` makes of it."""
    torch.manual_seed(0)
    model = nn.Linear(8, 8).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @pianola.graphed
    def train(x):
        return step(model, optimizer, x)

    return train


def plain(loss_of):
    def step(model, optimizer, x):
        optimizer.zero_grad()
        loss = loss_of(model, x)
        loss.backward()
        optimizer.step()
        return loss

    return step


def loses_its_loss(model, optimizer, x):
    optimizer.zero_grad()
    pianola.eager(lambda loss: loss.backward())(model(x).square().mean())
    optimizer.step()


def kept_loss():
    kept = []

    @pianola.eager
    def part(hidden):
        kept[:] = [hidden.square().mean()]
        return hidden * 2

    return lambda model, x: part(model(x)).mean() + kept[0]


def hooked(hidden):
    hidden.register_hook(lambda gradient: gradient * 10)
    return hidden * hidden


def penalty(model, x):
    x = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(pianola.eager(lambda h: h**3)(model(x)).sum(), x, create_graph=True)
    return gradient.square().mean()


def written_behind(model, x):
    hidden = model(x) * 2
    pianola.eager(lambda h: h)(hidden).add_(1)
    return hidden.mean()


def checkpointed(model, x):
    return checkpoint(lambda one: pianola.eager(lambda h: h * 2)(model(one)), x, use_reentrant=False).mean()


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (loses_its_loss, "sends its argument 0 a gradient by itself"),
        (plain(kept_loss()), "sends its argument 0 a gradient by itself"),
        (plain(lambda model, x: pianola.eager(hooked)(model(x)).mean()), "sets a hook on its argument 0"),
        (plain(penalty), "is differentiated twice"),
        (plain(written_behind), "returns an argument, which is written in place behind the call"),
        (plain(lambda model, x: sum(pianola.eager(lambda h: (h * 2).chunk(2))(model(x))).mean()), "returns results 0 and 1 that share memory"),
        (plain(checkpointed), "is called under hooks on saved tensors"),
    ],
)
def test_what_no_replay_could_do_is_refused_in_the_first_call(device, step, says):
    with pytest.raises(Exception, match=f"which stays eager, {says}"):
        trained(device, step)(randn(4, 8, seed=0, device=device))


def test_a_part_that_drops_or_makes_gradients_is_refused_where_it_is_replayed(device):
    drops = pianola.eager(lambda model, x: model.zero_grad())
    makes = pianola.eager(lambda model, x: model(x).abs().mean().backward())
    for part, before in ((drops, lambda optimizer: None), (makes, lambda optimizer: optimizer.zero_grad())):

        def step(model, optimizer, x, part=part, before=before):
            before(optimizer)
            part(model, x)
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        train = trained(device, step)
        with pytest.raises(pianola.UsageError, match="which stays eager, makes or drops gradients that the graph uses"):
            for i in range(6):
                train(randn(4, 8, seed=i, device=device))


def test_results_that_change_places_with_none(device):
    part = pianola.eager(lambda x: (x, None) if x.sum().item() > 0 else (None, x))

    @pianola.graphed
    @torch.no_grad()
    def step(x):
        one, other = part(x * 1)
        return one * 10 if one is not None else other * 1

    for i in range(5):
        step(randn(4, seed=i, device=device).abs())
    with pytest.raises(pianola.UsageError, match="which stays eager, returns another structure in a replay"):
        step(-randn(4, seed=5, device=device).abs())


def test_a_default_type_that_the_step_enters_around_a_part(device):
    part = pianola.eager(lambda x: x * torch.tensor(x.detach().sum().item(), device=x.device))

    def step(x):
        with double_precision():
            y = part(x * 2)
        return y + 1

    graphed = pianola.graphed(step)
    for i in range(8):
        x = randn(4, seed=i, device=device)
        assert_same(f"call {i}", graphed(x), step(x))
        assert torch.get_default_dtype() == torch.float32
    (known,) = graphed.info().signatures
    assert known.replays == 5, known.reason


def test_settings_that_the_step_enters_around_a_part(device):
    part = pianola.eager(lambda x: x * x.detach().sum().item())

    @pianola.graphed
    def step(x):
        with sdpa_kernel(SDPBackend.MATH):
            y = part(x * 2)
        return y + 1

    with pytest.raises(pianola.UsageError, match="which stays eager, is called where the step has entered other settings of torch"):
        for i in range(6):
            step(randn(4, seed=i, device=device))

    @pianola.graphed
    def other(x):
        return part(x * 2) + 1

    with sdpa_kernel(SDPBackend.MATH):
        for i in range(8):
            x = randn(4, seed=i, device=device)
            assert_same(f"call {i}", other(x), x * 2 * (x * 2).sum().item() + 1)


def test_parameters_as_arguments_are_themselves(device):
    def make(device):
        model = Mlp().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        clip = pianola.eager(lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.01))

        def step(x, y):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            clip(list(model.parameters()))
            optimizer.step()
            return loss

        return step, model

    assert_equal(make, device, steps=12)


def test_a_conjugate_as_an_argument(device):
    def make(device):
        part = pianola.eager(lambda z: z.imag * 1)

        @torch.no_grad()
        def step(x):
            return part(torch.complex(x, x * 2).conj())

        return step, Mlp()

    assert_equal(make, device, lambda i: (randn(4, seed=i, device=device),), steps=12)


@pytest.mark.parametrize("microbatches", [1, 3])
def test_a_part_with_weights_of_its_own_in_a_step_that_only_makes_gradients(device, microbatches):
    """No operation of such a step reads these weights, as an optimizer's would."""

    def train(graph, mark):
        torch.manual_seed(0)
        first, inner, last = torch.nn.Linear(6, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 3)
        modules = torch.nn.ModuleList([first, inner, last]).to(device)
        optimizer = torch.optim.AdamW(modules.parameters(), lr=1e-2)
        part = mark(lambda h: inner(h) * 2)

        def gradients(x):
            loss = last(part(first(x))).square().mean()
            loss.backward()
            return loss.detach()

        call, made = graph(gradients), []
        for step in range(12):
            for i in range(microbatches):
                x = torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * step + i)).to(device)
                made.append(call(x).clone())
            optimizer.step()
            optimizer.zero_grad()
        return made + [parameter.detach().clone() for parameter in modules.parameters()], call

    expected, _ = train(lambda function: function, lambda part: part)
    actual, call = train(lambda function: pianola.graphed(function, warmup=3), pianola.eager)
    assert all(map(torch.equal, actual, expected))
    assert sum(one.replays for one in call.info().signatures) >= 6, call.info()


def test_a_part_with_weights_of_its_own_that_were_trained_before(device):
    """Their AccumulateGrad nodes live on in a loss that is held, and run on the stream of the calls that made them."""

    def make(device):
        model = Mlp().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        @pianola.eager
        def middle(hidden):
            largest = hidden.detach().abs().max().item()
            return torch.relu(model.middle(hidden * (4.0 / largest) if largest > 4.0 else hidden))

        def step(x, y):
            optimizer.zero_grad()
            loss = F.mse_loss(model.head(middle(torch.relu(model.first(x)) * 3)), y)
            loss.backward()
            optimizer.step()
            return loss

        model.held = step(randn(16, 8, seed=1, device=device), randn(16, 1, seed=2, device=device))
        return step, model

    assert_equal(make, device)


@pytest.mark.parametrize("outputs", ["clone", "alias"])
def test_a_part_cannot_reset_its_function_and_calls_it_eagerly(device, outputs):
    now = []

    @pianola.eager
    def part(x):
        if now:
            now.pop()()
        return x * 3

    def step(x):
        return part(x + 1).cumsum(0)

    graphed = pianola.graphed(step, warmup=1, capacity=1, outputs=outputs)
    for i in range(6):
        graphed(randn(8, seed=i, device=device))

    def reset():
        with pytest.raises(pianola.UsageError, match=r"reset\(\) was called by a part that stays eager(.|\n)*fix:"):
            graphed.reset()

    def call():
        for i in range(4):
            other = randn(5, seed=i, device=device)
            assert_same("other", graphed(other), step(other))

    for i, do in enumerate((reset, call, reset)):
        now.append(do)
        x = randn(8, seed=10 + i, device=device)
        assert_same(do.__name__, graphed(x), step(x))
    graphed.reset()
    assert not graphed.info().signatures


def test_a_part_cannot_suspend_the_pool_of_its_replay(device):
    pool, said = pianola.GraphPool(device, can_sleep=True), []
    suspends = torch.zeros(1)  # of no graph

    @pianola.eager
    def part(x):
        if suspends.item():
            with pytest.raises(pianola.UsageError) as refused:
                pool.suspend()
            said.append(str(refused.value))
        return x * 3

    @pianola.graphed(warmup=1, pool=pool)
    def step(x):
        kept = (x * 2).cos() * 1.5
        return part(x.sum()) + kept

    for i in range(4):
        suspends.fill_(i == 3)
        x = randn(100_000, seed=i, device=device)
        assert_same(f"call {i}", step(x), x.sum() * 3 + (x * 2).cos() * 1.5)
    assert "suspend() was called while a replay of a graph of the pool runs" in said[0] and not pool.is_asleep
    assert pool.suspend() > 0
    pool.resume()
