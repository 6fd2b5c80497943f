"""Linear layers in 8 bits: models as people write them, converted, trained eagerly and as graphs."""

import copy
import pickle

import pianola
import pytest
import torch
import torch.nn.functional as F
from pianola import fp8
from torch import nn
from torch.utils.checkpoint import checkpoint
from twins import assert_same, assert_same_state

STEPS = 50
WORDS, LENGTH, WIDTH, HEADS = 40, 16, 32, 4

RECIPES = {
    "delayed": dict(amax_history_length=4),
    "delayed, most recent": dict(amax_history_length=2, amax_compute="most_recent", margin=1),
    "delayed, e4m3": dict(format="e4m3", amax_history_length=16, interval=2),
    "tensor": dict(scaling="tensor"),
    "row": dict(scaling="row", powers_of_two=True),
    "block": dict(scaling="block"),
}


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, width=WIDTH):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS)

    def forward(self, ids):
        x = self.words(ids) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def made(device, options):
    torch.manual_seed(0)
    model = Gpt(128 if options.get("scaling") == "block" else WIDTH).to(device)
    return fp8.convert(model, fp8.Recipe(**options))


def batch(number, device, size=8):
    return torch.randint(WORDS, (size, LENGTH), generator=torch.Generator().manual_seed(number)).to(device)


def loss_of(model, ids, **region):
    with fp8.autocast(**region):
        logits = model(ids)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


class Training:
    def __init__(self, device, options):
        self.model = made(device, options)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)

    def step(self, ids):
        self.optimizer.zero_grad()
        loss = loss_of(self.model, ids)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def replays_of(graphed):
    return sum(one.replays for one in graphed.info().signatures)


@pytest.mark.parametrize("name", RECIPES)
def test_a_graphed_step_trains_as_eager(device, name):
    eager, ours = Training(device, RECIPES[name]), Training(device, RECIPES[name])
    step = pianola.graphed(ours.step)
    losses = []
    for number in range(STEPS):
        ids = batch(number % 5, device)
        losses.append(eager.step(ids))
        assert_same(f"step {number}", step(ids), losses[-1])
        assert_same_state(ours.model, eager.model)
    assert replays_of(step) >= STEPS - 4, step.info()
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("name", ["delayed", "tensor"])
def test_layers_as_graphs_in_a_region_of_the_loop(device, name):
    eager, ours = Training(device, RECIPES[name]), Training(device, RECIPES[name])
    layers = pianola.graph_layers(ours.model, Block)
    for number in range(STEPS):
        ids = batch(number, device)
        assert_same(f"step {number}", ours.step(ids), eager.step(ids))
    assert_same_state(ours.model, eager.model)
    assert all(replays_of(layers[one]) >= STEPS - 4 for one in layers), layers.info()
    assert name != "delayed" or fp8.scales_of(ours.model).updates == STEPS


def test_callables_are_captured_in_a_region_and_refuse_to_be_called_outside(device):
    eager, ours = made(device, RECIPES["delayed"]), made(device, RECIPES["delayed"])
    sample = torch.randn(8, LENGTH, WIDTH, device=device, requires_grad=True)
    with fp8.autocast():
        ours.blocks[0] = pianola.make_graphed_callables(ours.blocks[0], (sample,))
    for number in range(10):
        ids = batch(number, device)
        for model in (eager, ours):
            loss_of(model, ids).backward()
        for (key, one), other in zip(ours.named_parameters(), eager.parameters()):
            assert_same(f"{key}, step {number}", one.grad, other.grad)
    assert_same("scales", fp8.scales_of(ours).scale, fp8.scales_of(eager).scale)
    with pytest.raises(pianola.GuardError, match="region: captured in 8 bits, each layer's recipe, now in none"):
        ours(batch(0, device))


@pytest.mark.parametrize("name", ["delayed", "tensor", "row"])
def test_an_overflow_is_found_and_its_step_skipped(device, name):
    def step_of(training):
        scaler = torch.amp.GradScaler(device.type, init_scale=1024.0, growth_interval=4)

        def step(x):
            training.optimizer.zero_grad()
            with fp8.autocast():
                loss = training.model.blocks[0](x).square().mean()
            scaler.scale(loss).backward()
            scaler.step(training.optimizer)
            scaler.update()
            return loss.detach()

        return step, scaler

    eager, twin = Training(device, RECIPES[name]), Training(device, RECIPES[name])
    (plain, eager_scaler), (ours, scaler) = step_of(eager), step_of(twin)
    step = pianola.graphed(ours)
    for number in range(24):
        x = torch.randn(4, LENGTH, WIDTH, generator=torch.Generator().manual_seed(number)).to(device)
        if number in (9, 17):
            x[0, 0, 0] = float("inf")
        before = [one.detach().clone() for one in twin.model.blocks[0].parameters()]
        loss, expected = step(x), plain(x)
        assert torch.equal(loss.nan_to_num(), expected.nan_to_num())
        for (key, one), other in zip(twin.model.state_dict().items(), eager.model.state_dict().values()):
            assert_same(key, one, other)
        assert scaler.get_scale() == eager_scaler.get_scale()
        skipped = all(torch.equal(one, other) for one, other in zip(before, twin.model.blocks[0].parameters()))
        assert skipped == (number in (9, 17)), number
    assert replays_of(step) >= 12, step.info()


def test_a_watch_stops_training_where_a_gradient_overflows(device):
    training = Training(device, RECIPES["delayed"])
    watch = pianola.FiniteWatch(device)

    def step(x):
        training.optimizer.zero_grad()
        with fp8.autocast():
            loss = training.model.blocks[0](x).square().mean()
        loss.backward()
        watch.check_gradients(training.model.blocks[0].named_parameters())
        watch.end_step()

    iteration = pianola.FullIteration(step)
    for number in range(6):
        iteration(torch.randn(4, LENGTH, WIDTH, device=device) * (1 if number < 5 else float("nan")))
        if number < 5:
            watch.wait()
    with pytest.raises(pianola.Error, match="is NaN in step 6"):
        watch.wait()


def test_the_audit_names_what_a_graph_would_not_follow(device):
    training, calls = Training(device, RECIPES["delayed"]), [0]
    training.optimizer = torch.optim.SGD(training.model.parameters(), lr=1e-2)
    ids = batch(0, device)
    assert pianola.audit(lambda: training.step(ids)).findings == []

    def replaces_the_history():
        scales = fp8.scales_of(training.model)
        scales.history = scales.history.clone()
        training.step(ids)

    def is_in_a_region_now_and_then():
        calls[0] += 1
        loss_of(training.model, ids, enabled=calls[0] % 2 == 0).backward()

    replaced, mismatch = (str(pianola.audit(step)) for step in (replaces_the_history, is_in_a_region_now_and_then))
    assert "PG802" in replaced and "blocks.0.qkv.fp8_scales.history' is given another tensor by the step" in replaced
    assert "PG501" in mismatch and "blocks.0.qkv" in mismatch


def as_it_is(block):
    pass


def with_a_frozen_weight(block):
    block.up.weight.requires_grad_(False)


def with_a_weight_that_is_read_elsewhere(block):
    plain = block.forward
    block.forward = lambda x: plain(x) + block.up.weight.sum()


def with_one_weight_for_two_layers(block):
    block.norm2 = nn.Sequential(block.norm2, copy.copy(block.out))


@pytest.mark.parametrize("change", [as_it_is, with_a_frozen_weight, with_a_weight_that_is_read_elsewhere, with_one_weight_for_two_layers])
@pytest.mark.parametrize("name", RECIPES)
def test_gradients_of_weights_may_come_later(device, name, change):
    eager, ours = made(device, RECIPES[name]).blocks[0], made(device, RECIPES[name]).blocks[0]
    change(eager)
    change(ours)
    x = torch.randn(8, LENGTH, ours.up.in_features, device=device, requires_grad=True)
    with fp8.autocast():
        graphed = pianola.make_graphed_callables(ours, (x,), delay_weight_gradients=True)
    assert graphed.forward.info().delayed >= 3
    for number in range(8):
        for model, call in ((eager, eager), (ours, graphed)):
            model.zero_grad()
            with fp8.autocast():
                loss = call(x * (number + 1)).square().mean()
            loss.backward()
            with torch.no_grad(), fp8.autocast():  # its end renews the scales, that of the gradient too
                model.up(x[:1])
            if call is graphed:
                assert ours.down.weight.grad is None and call.backward_dw()
        assert_same_state(ours, eager)


@pytest.mark.parametrize("name", ["delayed", "tensor"])
def test_gradients_of_weights_come_in_the_order_of_the_calls(device, name):
    """Graphs of all passes share memory: what one has left for later is not written by those behind it."""
    eager, ours = made(device, RECIPES[name]).blocks[0], made(device, RECIPES[name]).blocks[0]
    x = torch.randn(8, LENGTH, WIDTH, device=device, requires_grad=True)
    with fp8.autocast():
        graphed = pianola.make_graphed_callables(ours, (x,), slots=2, delay_weight_gradients=True)
    for number in range(6):
        for model, call in ((eager, eager), (ours, graphed)):
            model.zero_grad()
            losses = []
            for part in range(2):
                with fp8.autocast():
                    losses.append(call(x * (1 + number + 2 * part)).square().mean())
            for loss in losses:
                loss.backward()
            if call is graphed:
                for _ in losses:
                    assert call.backward_dw()
        assert_same_state(ours, eager)


@pytest.mark.parametrize("name", RECIPES)
def test_whole_iterations_whose_weights_are_kept_for_all_microbatches(device, name):
    def iteration_of(training):
        def iteration(microbatches):
            training.optimizer.zero_grad()
            total = 0
            for i, ids in enumerate(microbatches):
                loss = loss_of(training.model, ids, is_first_microbatch=i == 0) / len(microbatches)
                loss.backward()
                total = total + loss.detach()
            training.optimizer.step()
            return total

        return iteration

    eager, ours = Training(device, RECIPES[name]), Training(device, RECIPES[name])
    plain, iteration = iteration_of(eager), pianola.FullIteration(iteration_of(ours))
    for number in range(20):
        microbatches = [batch(4 * number + i, device) for i in range(4)]
        assert_same(f"iteration {number}", iteration(microbatches), plain(microbatches))
    assert_same_state(ours.model, eager.model)
    assert replays_of(iteration) >= 15, iteration.info()


def test_a_checkpoint_goes_on_as_if_nothing_had_been(device):
    first = Training(device, RECIPES["delayed"])
    for number in range(6):
        first.step(batch(number, device))
    second = Training(device, RECIPES["delayed"])
    second.model.load_state_dict(first.model.state_dict())
    second.optimizer.load_state_dict(copy.deepcopy(first.optimizer.state_dict()))
    step = pianola.graphed(second.step)
    for number in range(6, 20):
        ids = batch(number, device)
        assert_same(f"step {number}", step(ids), first.step(ids))
    assert_same_state(second.model, first.model)
    with pytest.raises(RuntimeError, match="size mismatch for blocks.0.qkv.fp8_scales.history"):
        Training(device, dict(amax_history_length=5)).model.load_state_dict(first.model.state_dict())


def test_copies_pickles_and_casts_keep_their_scales(device):
    model = made(device, RECIPES["delayed"])
    loss_of(model, batch(0, device)).backward()
    twin, other = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    ids = batch(1, device)
    expected = loss_of(model, ids)
    for one in (twin, other):
        assert_same("loss", loss_of(one, ids), expected)
        assert_same("scale", fp8.scales_of(one).scale, fp8.scales_of(model).scale)
        assert fp8.scales_of(one).updates == 2
    before = fp8.scales_of(model).scale.clone()
    model.bfloat16()
    assert fp8.scales_of(model).scale.dtype == torch.float32 and torch.equal(fp8.scales_of(model).scale, before)
    assert loss_of(model, ids).dtype == torch.bfloat16


def test_torchs_autocast_says_the_type_of_results(device):
    model = made(device, RECIPES["tensor"])
    with torch.autocast(device.type, torch.bfloat16), fp8.autocast():
        assert model.blocks[0].up(torch.randn(16, WIDTH, device=device)).dtype == torch.bfloat16


def test_what_is_converted(device):
    model = Gpt().to(device)
    weight = model.blocks[0].up.weight
    assert fp8.convert(model) is model
    assert isinstance(model.blocks[0].up, fp8.Float8Linear) and model.blocks[0].up.weight is weight
    assert type(model.head) is nn.Linear, "40 words are no multiple of 16"
    assert "delayed scaling, e4m3 and e5m2, the largest of the last 1024" in str(model.blocks[0].up)
    only = fp8.convert(Gpt(), fp8.Recipe("row"), filter=lambda name, layer: name.endswith("up"))
    assert [name for name, one in only.named_modules() if isinstance(one, fp8.Float8Linear)] == ["blocks.0.up", "blocks.1.up"]
    with pytest.raises(pianola.UsageError, match="has no scales of earlier steps"):
        fp8.scales_of(only)
    tied = nn.ModuleList([nn.Linear(16, 16)] * 2)
    assert fp8.convert(tied)[0] is tied[1] and len(fp8.scales_of(tied).scale) == 3


def test_outside_of_regions_layers_are_torchs(device):
    model, plain = made(device, RECIPES["delayed"]), Gpt().to(device)
    plain.load_state_dict(model.state_dict(), strict=False)
    ids = batch(0, device)
    assert_same("outside", model(ids), plain(ids))
    with fp8.autocast(enabled=False):
        assert_same("disabled", model(ids), plain(ids))
    with fp8.autocast():
        assert not torch.equal(model(ids), plain(ids))


def test_regions_that_end_in_another_order_leave_none_behind(device):
    model, plain = made(device, RECIPES["tensor"]), Gpt().to(device)
    plain.load_state_dict(model.state_dict())
    first, second, ids = fp8.autocast(), fp8.autocast(), batch(0, device)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not torch.equal(model(ids), plain(ids))
    second.__exit__(None, None, None)
    assert_same("outside", model(ids), plain(ids))
    with pytest.raises(KeyError), fp8.autocast(), fp8.autocast():
        raise KeyError
    assert_same("behind an error", model(ids), plain(ids))


def test_a_step_with_a_region_in_one_that_is_off_renews_its_scales(device):
    eager, ours = Training(device, RECIPES["delayed"]), Training(device, RECIPES["delayed"])
    step = pianola.graphed(ours.step)
    for number in range(12):
        ids = batch(number, device)
        with fp8.autocast(enabled=False):
            assert_same(f"step {number}", step(ids), eager.step(ids))
    assert_same_state(ours.model, eager.model)
    assert fp8.scales_of(ours.model).updates == 12
    assert_same("outside", step(ids), eager.step(ids))


def test_an_inner_region_leaves_the_outer_ones_microbatch_as_it_is(device):
    model, twin, ids = made(device, RECIPES["tensor"]), made(device, RECIPES["tensor"]), batch(0, device)
    loss_of(model, ids, is_first_microbatch=True)
    with torch.no_grad():
        model.blocks[0].up.weight.mul_(2)
        twin.blocks[0].up.weight.mul_(2)
    with fp8.autocast(is_first_microbatch=True):
        with fp8.autocast(is_first_microbatch=False):
            model.blocks[1].up(torch.randn(16, WIDTH, device=device))
        logits = model(ids)
    with fp8.autocast():
        assert_same("logits", logits, twin(ids))


@pytest.mark.parametrize("name", RECIPES)
def test_evaluations_of_any_number_of_rows(device, name):
    model = made(device, RECIPES[name]).eval()
    layer = model.blocks[0].up
    for rows in (0, 5):
        with torch.no_grad(), fp8.autocast():
            assert layer(torch.randn(rows, layer.in_features, device=device)).shape == (rows, layer.out_features)
    with torch.inference_mode(), fp8.autocast(is_first_microbatch=True):
        model(batch(0, device))
    loss_of(model.train(), batch(0, device), is_first_microbatch=True).backward()


def test_a_weight_that_another_recipe_kept_serves_nobody(device):
    model, twin, ids = made(device, RECIPES["tensor"]), made(device, dict(scaling="row")), batch(0, device)
    loss_of(model, ids, is_first_microbatch=True)
    with pytest.raises(pianola.UsageError, match="finds no quantised weight"):
        loss_of(model, ids, recipe=fp8.Recipe("row"), is_first_microbatch=False)
    assert_same("by rows", loss_of(model, ids, recipe=fp8.Recipe("row"), is_first_microbatch=True), loss_of(twin, ids))


def test_scales_of_a_model_that_was_made_without_memory(device):
    with torch.device("meta"):
        model = fp8.convert(Gpt())
    scales = fp8.scales_of(model.to_empty(device=device))
    assert scales.scale.eq(1).all() and scales.history.eq(0).all() and scales.updates == 0


def test_what_is_changed_in_place_behind_a_layer(device):
    torch.manual_seed(0)
    model = fp8.convert(nn.Sequential(nn.Linear(32, 64), nn.ReLU(inplace=True), nn.Linear(64, 32)).to(device), fp8.Recipe("tensor"))
    x = torch.randn(2, 8, 32, device=device)
    for shape in (x, x[0, :0], x.flatten(0, 1)):
        with fp8.autocast():
            loss = model(shape).square().sum()
        loss.backward()


def test_a_block_that_is_recomputed_opens_its_region_itself(device):
    def gradients(run):
        model = made(device, RECIPES["tensor"])
        x = torch.randn(8, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1)).to(device).requires_grad_()
        run(model.blocks[0], x).square().sum().backward()
        return [x.grad, *(one.grad for one in model.blocks[0].parameters())]

    def region_around(block, x):
        with fp8.autocast():
            return block(x)

    for reentrant in (True, False):
        wanted = gradients(region_around)
        for one, other in zip(gradients(lambda block, x: checkpoint(region_around, block, x, use_reentrant=reentrant)), wanted):
            assert_same("gradient", one, other)

        def region_outside(block, x, reentrant=reentrant):
            with fp8.autocast():
                return checkpoint(block, x, use_reentrant=reentrant)

        with pytest.raises(pianola.UsageError, match="recomputed outside of the region that it ran in"):
            gradients(region_outside)


@pytest.mark.parametrize(
    "call, says",
    [
        (lambda: fp8.convert(fp8.convert(nn.Linear(16, 16))), "layer '' is a Float8Linear already"),
        (lambda: fp8.convert(nn.Conv2d(3, 3, 1)), "has no nn.Linear whose features are multiples of 16"),
        (lambda: fp8.convert(nn.Linear(16, 10)), "has no nn.Linear whose features are multiples of 16"),
        (lambda: fp8.convert(Gpt(), filter=lambda name, layer: False), "has no nn.Linear that `filter` takes"),
        (lambda: fp8.convert(Gpt(), filter=lambda name, layer: name == "head"), "layer 'head' has 32 and 40 features"),
        (lambda: fp8.convert(Gpt(), fp8.Recipe("block")), "multiples of 128"),
        (lambda: fp8.Recipe("columns"), "scaling must be one of 'delayed', 'tensor', 'row', 'block', got 'columns'"),
        (lambda: fp8.Recipe(format="e5m2"), "format must be one of 'hybrid', 'e4m3', got 'e5m2'"),
        (lambda: fp8.Recipe(amax_compute="mean"), "amax_compute must be one of 'max', 'most_recent', got 'mean'"),
        (lambda: fp8.Recipe(amax_history_length=0), "amax_history_length must be 1 or more, got 0"),
        (lambda: loss_of(made("cpu", {}), batch(0, "cpu"), is_first_microbatch=False), "finds no quantised weight"),
        (lambda: loss_of(made("cpu", {}), batch(0, "cpu"), recipe=fp8.Recipe(margin=1)), "convert the model with the region's recipe"),
    ],
)
def test_what_cannot_be_done_is_refused(call, says):
    with pytest.raises((pianola.UsageError, RuntimeError), match=says):
        call()
