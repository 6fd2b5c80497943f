"""`graphed(islands="auto")`: programs that ask for values of tensors, whose replays ask again."""

import math
import re

import pianola
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from twins import assert_same

STEPS = 24


def bits_of(value):
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def run(program, device, batches, graphed, said):
    """What each call returned or raised, with what the program keeps; and the graphed function."""
    torch.manual_seed(0)
    step, kept = program(device)
    if graphed:
        step = pianola.graphed(step, on_fallback=said.append)
    seen = []
    for batch in batches:
        try:
            result = step(*(one.to(device) for one in batch))
        except ValueError as error:
            result = str(error)
        seen.append([bits_of(one) for one in (result, *kept())])
    seen.append([torch.rand(3, device=device)])
    return seen, step


def assert_alike(program, device, batches, replays, misses=0, said=()):
    told = []
    expected, _ = run(program, device, batches, False, [])
    actual, step = run(program, device, batches, True, told)
    for i, (ours, eager) in enumerate(zip(actual, expected)):
        assert len(ours) == len(eager)
        for one, other in zip(ours, eager):
            if isinstance(one, torch.Tensor):
                assert_same(f"call {i}", one, other)
            else:
                assert one == other or (one != one and other != other), i
    signatures = step.info().signatures
    assert sum(one.misses for one in signatures) == misses, (signatures[0].reason, told)
    assert sum(one.replays for one in signatures) >= replays, (signatures[0].reason, told)
    assert len(told) == len(said), told
    for text, part in zip(told, said):
        assert part in text
    return step


def of(i, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(i))


def regression(large=(), count=STEPS):
    return [(of(i, 16, 8), of(i + 1000, 16, 1) + (60 if i in large else 0)) for i in range(count)]


def network():
    return nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))


def training(decide, device, optimizer_of=torch.optim.AdamW):
    """A program around one decision: decide(model, optimizer, loss) makes the update."""
    model = network().to(device)
    optimizer = optimizer_of(model.parameters(), lr=1e-3)

    def step(x, y):
        optimizer.zero_grad()
        return decide(model, optimizer, F.mse_loss(model(x), y))

    def kept():
        counts = [state["step"] for state in optimizer.state.values() if "step" in state]
        return [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters() if p.grad is not None), *counts]

    return step, kept


def test_the_loop_of_torchvisions_references_stops_where_the_loss_is_not_finite(device):
    def decide(model, optimizer, loss):
        value = loss.item()
        if not math.isfinite(value):
            raise ValueError(f"Loss is {value}, stopping training")
        loss.backward()
        optimizer.step()
        return value

    batches = regression()
    batches[10] = (batches[10][0], batches[10][1] * math.inf)
    assert_alike(lambda device: training(decide, device), device, batches, replays=20, misses=1)


def scale_large_losses(model, optimizer, loss):
    if loss > 100:
        loss = loss * 0.1
    loss.backward()
    optimizer.step()
    return loss


def test_a_comparison_is_asked_again_and_not_its_number(device):
    def decide(model, optimizer, loss):
        if loss.item() > 100:
            loss = loss * 0.1
        loss.backward()
        optimizer.step()
        return loss

    assert_alike(lambda device: training(decide, device), device, regression(large={9, 14}), replays=18, misses=2)


def test_the_first_replay_may_meet_another_decision(device):
    assert_alike(lambda device: training(scale_large_losses, device), device, regression(large={3}), replays=19, misses=1)


def test_an_update_is_left_out_where_the_norm_is_too_large(device):
    def decide(model, optimizer, loss):
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if norm < 200:
            optimizer.step()
        return norm

    assert_alike(lambda device: training(decide, device), device, regression(large={7, 15}), replays=18, misses=2)


def test_a_decision_behind_an_optimizer_that_keeps_nothing_on_the_host(device):
    def decide(model, optimizer, loss):
        loss.backward()
        optimizer.step()
        if loss > 100:
            for parameter in model.parameters():
                parameter.data.mul_(0.5)
        return loss

    program = lambda device: training(decide, device, optimizer_of=torch.optim.SGD)  # noqa: E731
    assert_alike(program, device, regression(large={9}), replays=19, misses=1)


@pytest.mark.parametrize("optimizer_of", [torch.optim.AdamW, torch.optim.NAdam, torch.optim.SGD], ids=lambda one: one.__name__)
@pytest.mark.parametrize("others", [set(), {3}, {9, 15}], ids=str)
def test_a_loss_that_is_read_behind_the_optimizer(device, optimizer_of, others):
    def decide(model, optimizer, loss):
        loss.backward()
        optimizer.step()
        value = loss.item()
        if value > 100:
            for parameter in model.parameters():
                parameter.data.mul_(0.5)
        return value

    def program(device):
        return training(decide, device, optimizer_of)

    assert_alike(program, device, regression(large=others), replays=20 - len(others), misses=len(others))


def test_a_loss_that_is_changed_before_it_is_read(device):
    def decide(model, optimizer, loss):
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            loss.sub_(100)
        if loss.item() > 0:
            model[0].weight.data.mul_(0.5)
        return loss

    program = lambda device: training(decide, device, torch.optim.SGD)  # noqa: E731
    assert_alike(program, device, regression(large={9}), replays=19, misses=1)


def test_what_is_written_behind_a_read_need_not_be_copied(device):
    def program(device):
        model = nn.Sequential(nn.Linear(8, 2048), nn.ReLU(), nn.Linear(2048, 512), nn.ReLU(), nn.Linear(512, 1)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)  # 4 MiB: more than the tape would copy

        def step(x, y):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            if math.isnan(loss.item()):
                raise ValueError("diverged")
            return loss

        return step, lambda: [*model.parameters()]

    assert_alike(program, device, regression(), replays=20)


def test_a_decision_behind_one_that_counts_on_the_host_stays_eager(device):
    def decide(model, optimizer, loss):
        loss.backward()
        optimizer.step()
        if loss > 100:
            model[0].weight.data.mul_(0.5)
        return loss

    assert_alike(lambda device: training(decide, device), device, regression(), replays=0,
                 said=["it reads behind an optimizer's step, or what else counts on the host"])  # fmt: skip


def test_a_decision_behind_a_part_that_stays_eager_is_not_made_twice(device):
    lines = []

    @pianola.eager
    def log(loss):
        lines.append(bool(loss.isfinite()))

    def decide(model, optimizer, loss):
        log(loss)
        if loss > 100:
            loss = loss * 0.1
        loss.backward()
        optimizer.step()
        return loss

    assert_alike(lambda device: training(decide, device), device, regression(), replays=0,
                 said=["it reads behind a part that stays eager, which would run twice"])  # fmt: skip
    assert len(lines) == 2 * STEPS


def test_a_transformer_whose_encoder_looks_at_its_mask(device):
    def program(device):
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(device)
        embedding, head = nn.Embedding(20, 16).to(device), nn.Linear(16, 20).to(device)
        parameters = [*encoder.parameters(), *embedding.parameters(), *head.parameters()]
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        mask = nn.Transformer.generate_square_subsequent_mask(8).to(device)

        def step(words):
            optimizer.zero_grad()
            hidden = encoder(embedding(words[:, :-1]), mask)  # _detect_is_causal_mask asks all()
            loss = F.cross_entropy(head(hidden).flatten(0, 1), words[:, 1:].flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 0.5)
            optimizer.step()
            return loss.item()

        return step, lambda: parameters

    batches = [(torch.randint(20, (4, 9), generator=torch.Generator().manual_seed(i)),) for i in range(STEPS)]
    assert_alike(program, device, batches, replays=20)


def test_a_graph_network_with_a_mask_for_training(device):
    def program(device):
        adjacency = (torch.rand(30, 30) < 0.2).float().to(device)
        features, labels = torch.randn(30, 8).to(device), torch.randint(3, (30,)).to(device)
        train = torch.arange(30).to(device) < 20
        first, second = nn.Linear(8, 16).to(device), nn.Linear(16, 3).to(device)
        parameters = [*first.parameters(), *second.parameters()]
        optimizer = torch.optim.Adam(parameters, lr=0.01, weight_decay=5e-4)

        def step():
            optimizer.zero_grad()
            out = adjacency @ second(F.dropout(adjacency @ first(features), 0.5).relu())
            loss = F.cross_entropy(out[train], labels[train])
            accuracy = (out[train].argmax(1) == labels[train]).float().mean()
            loss.backward()
            optimizer.step()
            return loss.item() + accuracy.item()

        return step, lambda: parameters

    assert_alike(program, device, [()] * STEPS, replays=20)


def descending(device, model, loss_of):
    """A program that descends: loss_of(model, *batch)."""
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(*batch):
        optimizer.zero_grad()
        loss = loss_of(model, *batch)
        loss.backward()
        optimizer.step()
        return loss

    return step, lambda: [*model.parameters()]


def test_a_number_of_rows_that_changes_runs_eagerly_once(device):
    def of_known(model, x, y):
        known = ~y.isnan()
        error = (model(x)[known] - y[known]).square()
        places = known.nonzero()
        return error.mean() + 0.001 * x[places[:, 0]].mean()

    batches = regression()
    for x, y in batches:
        y[3] = math.nan
    batches[12][1][4] = math.nan
    assert_alike(lambda device: descending(device, nn.Linear(8, 1), of_known), device, batches, replays=19, misses=1)


def test_lengths_are_read_and_cut(device):
    def of_cut(model, x, lengths):
        longest = lengths.max().item()
        return model(x[:, :longest]).square().mean()

    batches = [(of(i, 3, 10, 4), torch.tensor([7, 5, 3] if i != 11 else [4, 5, 3])) for i in range(STEPS)]
    assert_alike(lambda device: descending(device, nn.Linear(4, 4), of_cut), device, batches, replays=19, misses=1)


def test_repeats_whose_sum_is_the_same(device):
    def of_repeated(model, x, repeats):
        return model(x.repeat_interleave(repeats, 0)).square().mean()

    batches = [(of(i, 3, 4), torch.tensor([1 + i % 2, 2 - i % 2, 2])) for i in range(STEPS)]
    assert_alike(lambda device: descending(device, nn.Linear(4, 4), of_repeated), device, batches, replays=20)


def test_an_inference_that_asks_whether_it_is_over(device):
    def program(device):
        model = nn.Linear(8, 8, bias=False).to(device).eval()

        @torch.no_grad()
        def step(x):
            for _ in range(3):
                x = model(x).tanh()
                if x.abs().max() < 0.1:
                    break
            return x

        return step, lambda: []

    batches = [(of(i, 4, 8) * (1 if i != 9 else 0.001),) for i in range(STEPS)]
    assert_alike(program, device, batches, replays=20, misses=1)


def test_what_always_changes_stays_eager_and_says_so(device):
    def decide(model, optimizer, loss):
        (loss * loss.detach().item()).backward()
        optimizer.step()
        return loss

    step = assert_alike(lambda device: training(decide, device), device, regression(), replays=0,
                        said=["aten::mul.Tensor was given"])  # fmt: skip
    assert step.info().signatures[0].state == "eager"


def test_decisions_that_change_often_end_the_checks(device):
    batches = regression(large={i for i in range(8, 80) if i % 16 < 8}, count=80)
    told = []
    expected, _ = run(lambda device: training(scale_large_losses, device), device, batches, False, [])
    actual, step = run(lambda device: training(scale_large_losses, device), device, batches, True, told)
    for ours, eager in zip(actual, expected):
        for one, other in zip(ours, eager):
            assert_same("state", one, other)
    assert step.info().signatures[0].state == "eager"
    assert re.search(r"replays cannot check what is read: in \d+ of \d+ calls a value", told[0])


@pytest.mark.parametrize("others", [set(), {9}, {3}, {7, 12}], ids=str)
def test_a_module_whose_backward_pass_runs_outside(device, others):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.dropout, self.linear = nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 8)

        def forward(self, x, mask):
            hidden = self.linear(self.dropout(self.norm(x)))
            if mask.all():
                return hidden
            return hidden * mask if mask.sum().item() > 1 else hidden

    def train(graphed):
        torch.manual_seed(0)
        model = Model().to(device)
        if graphed:
            pianola.graphed(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        seen = []
        for i in range(20):
            mask = torch.ones(4, 8, dtype=torch.bool)
            mask[0, 0] = i not in others
            optimizer.zero_grad()
            loss = model(of(i, 4, 8).to(device), mask.to(device)).square().mean()
            loss.backward()
            optimizer.step()
            seen.append([bits_of(one) for one in (loss, *model.parameters(), *model.buffers())])
        return seen, model

    expected, _ = train(graphed=False)
    actual, model = train(graphed=True)
    for i, (ours, eager) in enumerate(zip(actual, expected)):
        for one, other in zip(ours, eager):
            assert_same(f"step {i}", one, other)
    (signature,) = model.forward.info().signatures
    assert signature.misses == len(others) and signature.replays == 17 - len(others), signature.reason


def test_an_option_that_is_none_of_them_is_refused():
    with pytest.raises(pianola.UsageError, match="islands must be 'marked' or 'auto', got 'all'"):
        pianola.graphed(lambda x: x, islands="all")


# --- What a call that is taken back must not leave ---


def test_a_scheduler_before_the_question_steps_once(device):
    def program(device):
        model = nn.Linear(4, 1).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

        def step(x):
            is_large = x.sum() > 50
            scheduler.step()
            return x * 2 if is_large else x * 3

        return step, lambda: [torch.tensor([scheduler.last_epoch, optimizer.param_groups[0]["lr"]], dtype=torch.float64)]

    batches = [(torch.ones(2, 4) * (1000 if i in (10, 15) else 0.1),) for i in range(STEPS)]
    assert_alike(program, device, batches, replays=18, misses=2)


def gradients_of(parameters):
    return [torch.zeros(0) if p.grad is None else p.grad for p in parameters]


@pytest.mark.parametrize("optimizer_of", [torch.optim.Adam, torch.optim.SGD], ids=lambda one: one.__name__)
@pytest.mark.parametrize("others", [{3}, {10}, {9, 10, 11}], ids=str)
def test_a_parameter_without_a_gradient_has_none_behind_the_other_way(device, optimizer_of, others):
    def program(device):
        model = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 1)]).to(device)
        optimizer = optimizer_of(model.parameters(), lr=0.1)

        def step(x):
            optimizer.zero_grad()
            hidden = model[0](x)
            if x.sum() > 50:
                hidden = hidden.detach()
            loss = model[1](hidden).mean()
            loss.backward()
            optimizer.step()
            return loss

        return step, lambda: [*model.parameters(), *gradients_of(model.parameters())]

    batches = [(torch.ones(2, 4) * (1000 if i in others else 0.1),) for i in range(STEPS)]
    assert_alike(program, device, batches, replays=12, misses=len(others))


@pytest.mark.parametrize("zeroed", [None, True, False], ids=["added up", "none", "zeros"])
def test_gradients_of_a_call_that_leaves_early(device, zeroed):
    def program(device):
        model = nn.Linear(4, 1).to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

        def step(x):
            if zeroed is not None:
                optimizer.zero_grad(zeroed)
            loss = model(x).square().mean()
            loss.backward()
            if x.sum() > 50:
                return loss * 1
            optimizer.step()
            return loss

        return step, lambda: [*model.parameters(), *gradients_of(model.parameters())]

    batches = [(torch.ones(2, 4) * (1000 if i in (10, 15) else 0.1),) for i in range(STEPS)]
    assert_alike(program, device, batches, replays=14, misses=2)


def test_gradients_that_are_set_from_outside(device):
    def program(device):
        model = nn.Linear(4, 1, bias=False).to(device)
        calls = iter(range(1000))

        def step(x):
            model(x).sum().backward()
            return x * 2 if x.sum() > 50 else x * 3

        def kept():
            seen = model.weight.grad.clone()
            model.weight.grad = torch.full_like(model.weight, float(next(calls)))
            return [seen]

        return step, kept

    batches = [(torch.ones(2, 4) * (10 if i in (12, 17) else 1),) for i in range(STEPS)]
    assert_alike(program, device, batches, replays=10, misses=2)


def test_what_the_question_raises_is_raised_in_the_call(device):
    def program(device):
        def step(x):
            try:
                return x * 2 if 1 / x.sum().item() > 1e9 else x * 3
            except ZeroDivisionError:
                return x * 7

        return step, lambda: []

    assert_alike(program, device, [(torch.ones(2) * (i != 8),) for i in range(STEPS)], replays=20, misses=1)


def test_masks_that_do_not_fit_are_refused_as_in_eager(device):
    def program(device):
        def step(x, mask):
            try:
                return x[mask]
            except IndexError:
                return x * 5

        return step, lambda: []

    for size in (3, 7):
        assert_alike(program, device, [(torch.ones(5), torch.ones(size, dtype=torch.bool))] * 8, replays=0, said=["PG"])
    both = [(of(i, 3, 2, 2), torch.tensor([[True, False], [False, True], [True, True]])) for i in range(STEPS)]
    assert_alike(program, device, both, replays=20)


def test_a_small_write_into_large_memory_is_put_back_alone(device):
    def program(device):
        buffer = torch.zeros(1 << 20, device=device)

        def step(x):
            buffer[5:9].copy_(x[0])
            return x * 3 if (x * 2).sum() > 100 else x

        return step, lambda: [buffer[:16]]

    batches = [(of(i, 2, 4) + (100 if i == 9 else 0),) for i in range(STEPS)]
    assert_alike(program, device, batches, replays=19, misses=1)


def test_another_value_in_the_call_that_captures_is_tried_again(device):
    def program(device):
        return lambda x: F.one_hot(x.long()[:, 0]), lambda: []

    batches = [(torch.ones(6, 4) * (2 if i == 3 else 1),) for i in range(STEPS)]
    told = []
    expected, _ = run(program, device, batches, False, [])
    actual, step = run(program, device, batches, True, told)
    for ours, eager in zip(actual, expected):
        assert_same("result", ours[0], eager[0])
    assert not told and step.info().signatures[0].replays >= 18


def test_a_decision_that_takes_turns_is_not_captured_for_ever(device):
    def program(device):
        model = nn.Linear(4, 4).to(device)

        def step(x):
            with torch.no_grad():
                y = model(x)
                return y * 3 if x[0, 0] > 0 else y

        return step, lambda: []

    batches = [(torch.full((6, 4), 1.0 if i % 40 < 20 else -1.0),) for i in range(400)]
    told = []
    _, step = run(program, device, batches, True, told)
    signature = step.info().signatures[0]
    assert signature.state == "eager" and signature.recaptures < 5 and "replays cannot check" in told[0]
