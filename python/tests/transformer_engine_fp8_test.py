"""The FP8 arguments of Transformer Engine's make_graphed_callables, on layers that pianola.fp8 made.

transformer_engine itself is not there: a stand-in has its names and arguments, and its recipes with their fields and defaults, retyped
from its documentation. Code is as its users write it, but that their model is converted, and that its regions are pianola.fp8.autocast.
"""

import dataclasses
import enum
import gc
import sys
import types
import weakref
from typing import Any, Optional

import pianola
import pytest
import torch
from pianola import fp8
from torch import nn
from twins import assert_same, assert_same_state, batches

STEPS = 10
WIDTH, ROWS = 128, 128


class Format(enum.Enum):
    E4M3, E5M2, HYBRID = "e4m3", "e5m2", "hybrid"


@dataclasses.dataclass(frozen=True)
class MMParams:
    use_split_accumulator: bool = True


@dataclasses.dataclass(frozen=True)
class QParams:
    power_2_scale: bool = False
    amax_epsilon: float = 0.0


@dataclasses.dataclass
class DelayedScaling:
    margin: int = 0
    fp8_format: Format = Format.HYBRID
    amax_history_len: int = 1024
    amax_compute_algo: Any = "max"
    scaling_factor_compute_algo: Any = None
    reduce_amax: bool = True
    fp8_dpa: bool = False
    fp8_mha: bool = False
    backward_override: Optional[str] = None


@dataclasses.dataclass
class Float8CurrentScaling:
    use_power_2_scales: bool = False
    fp8_format: Format = Format.HYBRID
    fp8_quant_fwd_inp = QParams()
    fp8_quant_fwd_weight = QParams()
    fp8_quant_bwd_grad = QParams()
    fp8_gemm_fprop: MMParams = MMParams(use_split_accumulator=False)
    fp8_gemm_dgrad: MMParams = MMParams()
    fp8_gemm_wgrad: MMParams = MMParams()
    fp8_dpa: bool = False


@dataclasses.dataclass
class Float8BlockScaling:
    use_f32_scales: bool = False
    fp8_format: Format = Format.E4M3
    fp8_quant_fwd_inp = QParams(power_2_scale=True)
    fp8_quant_fwd_weight = QParams(power_2_scale=True)
    fp8_quant_bwd_grad = QParams(power_2_scale=True)
    x_block_scaling_dim: int = 1
    w_block_scaling_dim: int = 2
    grad_block_scaling_dim: int = 1
    fp8_gemm_fprop: MMParams = MMParams()
    fp8_gemm_dgrad: MMParams = MMParams()
    fp8_gemm_wgrad: MMParams = MMParams()


class MXFP8BlockScaling:
    pass


class NVFP4BlockScaling:
    pass


RECIPES = {
    "delayed": DelayedScaling(amax_history_len=4),
    "delayed, most recent": DelayedScaling(margin=1, fp8_format=Format.E4M3, amax_history_len=2, amax_compute_algo="most_recent"),
    "current": Float8CurrentScaling(),
    "blocks": Float8BlockScaling(),
    "pianola's": fp8.Recipe(scaling="row"),
    "of the layers": None,
}


class Layer(nn.Module):
    """In place of a layer of Transformer Engine."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Sequential(nn.Sequential):
    """Of Transformer Engine's own tests: arguments go to each layer."""

    def forward(self, x, **kwargs):
        for module in self:
            x = module(x, **kwargs)
        return x


@pytest.fixture
def te(monkeypatch):
    """`import transformer_engine.pytorch as te`, inside of pianola.compat()"""

    def make_graphed_callables(modules, sample_args, num_warmup_iters=3, **options):
        raise AssertionError("Transformer Engine's own was called")

    package, pytorch, graph = (types.ModuleType("transformer_engine" + rest) for rest in ("", ".pytorch", ".pytorch.graph"))
    package.pytorch, pytorch.graph = pytorch, graph
    package.__path__ = pytorch.__path__ = []
    pytorch.make_graphed_callables = graph.make_graphed_callables = make_graphed_callables
    for module in (package, pytorch, graph):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    with pianola.compat():
        yield pytorch


def model_of(device, recipe=None, count=2):
    torch.manual_seed(3)
    return fp8.convert(Sequential(*(Layer() for _ in range(count))).to(device), recipe or DelayedScaling(amax_history_len=4))


def sample(device):
    return torch.randn(ROWS, WIDTH, device=device, requires_grad=True)


def samples(device, count):
    return tuple((sample(device),) for _ in range(count))


def optimizer_of(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(model, run, x):
    y = run(model, x.clone().requires_grad_())
    y.square().mean().backward()
    return y.detach().clone()


def assert_trains_alike(device, eager, ours, run_eager, run_ours, steps=STEPS):
    optimizers = optimizer_of(eager), optimizer_of(ours)
    for number, x in enumerate(batches(steps, (ROWS, WIDTH), device)):
        for optimizer in optimizers:
            optimizer.zero_grad()
        assert_same(f"step {number}", train(ours, run_ours, x), train(eager, run_eager, x))
        for optimizer in optimizers:
            optimizer.step()
        assert_same_state(ours, eager)


@pytest.mark.parametrize("how", ["the whole model", "layer by layer", "a tuple"])
@pytest.mark.parametrize("name", RECIPES)
def test_a_model_trains_as_eager(te, device, name, how):
    recipe = RECIPES[name]
    eager, ours = model_of(device, recipe), model_of(device, recipe)
    if how == "the whole model":
        graphed = te.make_graphed_callables(ours, (sample(device),), enabled=True, recipe=recipe)
    elif how == "layer by layer":
        graphed = Sequential(*(te.make_graphed_callables(one, (sample(device),), enabled=True, recipe=recipe) for one in ours))
    else:
        graphed = Sequential(*te.make_graphed_callables(tuple(ours), samples(device, 2), enabled=True, recipe=recipe))
    assert_same_state(ours, eager)

    def run(model, x):
        with fp8.autocast(enabled=True, recipe=recipe):
            return (graphed if model is ours else model)(x)

    assert_trains_alike(device, eager, ours, run, run)


def test_a_recipe_that_the_layers_have_anyway_may_be_left_out_of_either(te, device):
    recipe = DelayedScaling(amax_history_len=4)
    for at_capture, at_call in ((None, recipe), (recipe, None)):
        eager, ours = model_of(device, recipe), model_of(device, recipe)
        graphed = te.make_graphed_callables(ours, (sample(device),), enabled=True, recipe=at_capture)

        def run(model, x):
            with fp8.autocast(recipe=at_call):
                return (graphed if model is ours else model)(x)

        assert_trains_alike(device, eager, ours, run, run, steps=3)


def test_layers_may_be_left_out_of_8_bits(te, device):
    eager, ours = model_of(device, count=3), model_of(device, count=3)
    enabled = (True, False, True)
    graphed = te.make_graphed_callables(tuple(ours), samples(device, 3), enabled=enabled)

    def run_ours(model, x):
        with fp8.autocast():
            for layer in graphed:
                x = layer(x)
        return x

    def run_eager(model, x):
        with fp8.autocast():
            for layer, on in zip(model, enabled):
                with fp8.autocast(enabled=on):
                    x = layer(x)
        return x

    assert_trains_alike(device, eager, ours, run_eager, run_ours)
    assert (fp8.scales_of(ours).scale.view(3, -1)[1] == 1).all()
    x = sample(device)
    assert_same("outside", graphed[1](x), eager[1](x))


def test_scales_are_calibrated_without_8_bits(te, device):
    eager, ours = model_of(device), model_of(device)
    graphed = te.make_graphed_callables(ours, (sample(device),), fp8_enabled=False, fp8_calibrating=True)

    def run(model, x):
        with fp8.autocast(enabled=False, calibrating=True):
            return (graphed if model is ours else model)(x)

    assert_trains_alike(device, eager, ours, run, run)
    assert (fp8.scales_of(ours).scale.view(-1, 3)[:, :2] != 1).all()
    with pytest.raises(pianola.GuardError, match="captured in calibration of 8 bits, now in none"):
        graphed(sample(device))


@pytest.mark.parametrize("name", RECIPES)
def test_weights_are_kept_for_all_microbatches(te, device, name):
    recipe = RECIPES[name]
    eager, ours = model_of(device, recipe), model_of(device, recipe)
    graphed = Sequential(*(
        te.make_graphed_callables(one, (sample(device),), fp8_enabled=True, fp8_recipe=recipe, fp8_weight_caching=True) for one in ours
    ))  # fmt: skip
    optimizers = optimizer_of(eager), optimizer_of(ours)
    for step in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        for i, x in enumerate(batches(3, (ROWS, WIDTH), device, seed=step)):

            def run_eager(model, x):
                with fp8.autocast(recipe=recipe, is_first_microbatch=i == 0):
                    return model(x)

            def run_ours(model, x):
                with fp8.autocast(recipe=recipe):
                    return graphed(x, is_first_microbatch=i == 0)

            assert_same(f"step {step}, microbatch {i}", train(ours, run_ours, x), train(eager, run_eager, x))
        for optimizer in optimizers:
            optimizer.step()
        assert_same_state(ours, eager)


def test_later_microbatches_take_the_weights_of_the_first(te, device):
    model = model_of(device, RECIPES["current"], count=1)
    graphed, x = te.make_graphed_callables(model, (sample(device),), enabled=True, cache_quantized_params=True), sample(device)

    def result(is_first):
        with fp8.autocast():
            return graphed(x, is_first_microbatch=is_first).detach().clone()

    first = result(True)
    with torch.no_grad():
        model[0].up.weight.mul_(2)
    assert_same("later", result(False), first)
    assert not torch.equal(result(True), first)


@pytest.mark.parametrize("flag", [{}, {"is_first_microbatch": 1}])
def test_kept_weights_want_to_know_which_microbatch_it_is(te, device, flag):
    for enabled in (True, False):
        graphed = te.make_graphed_callables(model_of(device), (sample(device),), enabled=enabled, cache_quantized_params=True)
        with fp8.autocast(enabled=enabled), pytest.raises(ValueError, match="`is_first_microbatch` boolean kwarg must be provided"):
            graphed(sample(device), **flag)


def test_evaluation_runs_eagerly_and_takes_the_microbatch_too(te, device):
    eager, ours = model_of(device), model_of(device)
    graphed = te.make_graphed_callables(tuple(ours), samples(device, 2), enabled=True, cache_quantized_params=True)
    graphed, x = Sequential(*graphed).eval(), sample(device)
    with torch.no_grad(), fp8.autocast(), fp8.autocast(is_first_microbatch=True):
        expected = eager.eval()(x)
    with torch.no_grad(), fp8.autocast():
        assert_same("evaluation", graphed(x, is_first_microbatch=True), expected)


@pytest.mark.parametrize("later", [[], [-2.5, -1.5, -2.5, -1.5]], ids=["weights at once", "weights later"])
def test_a_pipeline_in_8_bits_trains_as_eager(te, device, later):
    order = [1, 1, 2, 2, -2, -1, -2, -1, *later]
    eager, ours = model_of(device), model_of(device)
    functions = te.make_graphed_callables(
        tuple(ours), samples(device, 4), enabled=True, cache_quantized_params=True, _order=order, _num_layers_per_chunk=[1, 1]
    )
    optimizers = optimizer_of(eager), optimizer_of(ours)
    for step in range(STEPS):
        inputs = batches(2, (ROWS, WIDTH), device, seed=step)
        results = []
        for model, optimizer in zip((eager, ours), optimizers):
            optimizer.zero_grad()
            made = [x.clone().requires_grad_() for x in inputs]
            with fp8.autocast():
                for chunk in range(2):
                    for m in range(2):
                        if model is ours:
                            made[m] = functions[2 * chunk + m](made[m], is_first_microbatch=m == 0)
                        else:
                            with fp8.autocast(is_first_microbatch=m == 0):
                                made[m] = model[chunk](made[m])
            for y in made:
                y.square().mean().backward()
            for chunk, m in ((1, 0), (0, 0), (1, 1), (0, 1)) if later and model is ours else ():
                assert functions[2 * chunk + m].backward_dw()
            results.append([y.detach().clone() for y in made])
            optimizer.step()
        for one, other in zip(*results):
            assert_same(f"step {step}", one, other)
        assert_same_state(ours, eager)


def test_what_is_not_in_8_bits_runs_so_in_any_region(te, device):
    ours, x = model_of(device), sample(device)
    expected = model_of(device)(x)
    graphed = te.make_graphed_callables(ours, (sample(device),), enabled=False)
    assert_same("outside", graphed(x), expected)
    with fp8.autocast():
        assert_same("inside", graphed(x), expected)


def test_a_capture_leaves_scales_as_they_were(te, device):
    model = model_of(device)
    with fp8.autocast():
        model(sample(device)).square().sum().backward()
    model.zero_grad()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    te.make_graphed_callables(model[1], (sample(device),), enabled=True)
    for name, value in model.state_dict().items():
        assert_same(name, value, before[name])


def test_a_capture_that_fails_leaves_no_region_and_no_scale(te, device):
    class Reads(Layer):
        def forward(self, x):
            return super().forward(x) * float(x.sum())

    torch.manual_seed(3)
    model = fp8.convert(nn.Sequential(Layer(), Reads()).to(device))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(pianola.CaptureError):
        te.make_graphed_callables(tuple(model), samples(device, 2), enabled=(True, False))
    for name, value in model.state_dict().items():
        assert_same(name, value, before[name])
    assert fp8.open_regions() == []
    x = sample(device)
    with fp8.autocast(enabled=False):
        expected = model[0](x)
    assert_same("outside", model[0](x), expected)


def test_hooks_of_the_caller_run_beside_the_closed_region(te, device):
    seen = []
    before, after = lambda module: seen.append("before"), lambda module: seen.append("after")
    hooks = [None, {"forward_pre_hooks": {0: before}, "forward_hooks": {0: after}}]
    te.make_graphed_callables(
        tuple(model_of(device)), samples(device, 2), num_warmup_iters=2, enabled=[True, False], capture_time_hooks=hooks
    )
    assert seen and seen == ["before", "after"] * (len(seen) // 2)


def test_a_model_and_its_graphs_are_freed_without_the_collector(te, device):
    gc.collect()
    gc.disable()
    try:
        model = model_of(device)
        graphed = te.make_graphed_callables(tuple(model), samples(device, 2), enabled=(True, False), cache_quantized_params=True)
        with fp8.autocast():
            graphed[0](sample(device), is_first_microbatch=True).sum().backward()
        witness = weakref.ref(model[0])
        del model, graphed
        assert witness() is None
    finally:
        gc.enable()


def test_amaxes_of_a_group_want_a_region_with_the_group(te, device, monkeypatch):
    group, asked = object(), []
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda amaxes, operation, group: asked.append(group))
    graphed = te.make_graphed_callables(model_of(device), (sample(device),), enabled=True, amax_reduction_group=group)
    assert asked == [], "a capture computes no scales"
    with fp8.autocast(group=group):
        graphed(sample(device))
    assert asked == [group]
    for other, words in ((None, "without a group"), (object(), "of another group")):
        with fp8.autocast(group=other), pytest.raises(pianola.GuardError, match=f"called in a region {words}; nothing was launched"):
            graphed(sample(device))
    with fp8.autocast(recipe=DelayedScaling(amax_history_len=4, reduce_amax=False), group=group):
        model_of(device)(sample(device))
    assert asked.count(group) == 1


@pytest.mark.parametrize(
    "region, now",
    [
        (None, "none"),
        (dict(enabled=False), "none"),
        (dict(recipe=Float8CurrentScaling()), "8 bits, tensor scaling, e4m3 and e5m2"),
    ],
)
def test_a_call_in_another_region_is_refused(te, device, region, now):
    graphed = te.make_graphed_callables(model_of(device), (sample(device),), enabled=True)
    with pytest.raises(pianola.GuardError, match=f"region: captured in 8 bits, each layer's recipe, now in {now}"):
        if region is None:
            graphed(sample(device))
        else:
            with fp8.autocast(**region):
                graphed(sample(device))


class LayerNormMLP(Layer):
    """One of Transformer Engine's modules."""


LayerNormMLP.__module__ = "transformer_engine.pytorch.module.layernorm_mlp"


@pytest.mark.parametrize(
    "model, arguments, error, text",
    [
        (Layer, dict(enabled=True), pianola.UnsupportedError, "enabled: 'Layer' has no layer that computes in 8 bits"),
        (Layer, dict(calibrating=True), pianola.UnsupportedError, "calibrating: 'Layer' has no layer that computes in 8 bits"),
        (
            lambda: nn.Sequential(nn.Identity(), LayerNormMLP()),
            dict(enabled=True),
            pianola.UnsupportedError,
            r"enabled: 1 \(LayerNormMLP\) is Transformer Engine's, and Pianola does not capture Transformer Engine's FP8",
        ),
        (Layer, dict(enabled=(True, False)), ValueError, r"enabled length \(2\) must match modules length \(1\)"),
        (Layer, dict(enabled=1), TypeError, "enabled must be a bool or a tuple of bools, but got int"),
        *(
            (Layer, {old: value, new: value}, ValueError, f"deprecated `{old}` kwarg in favor of `{new}`, but both kwargs are set")
            for old, new, value in (
                ("fp8_enabled", "enabled", True),
                ("fp8_calibrating", "calibrating", True),
                ("fp8_recipe", "recipe", DelayedScaling()),
                ("fp8_group", "amax_reduction_group", "a group"),
                ("fp8_weight_caching", "cache_quantized_params", True),
            )
        ),
    ],
)
def test_what_it_takes_for_fp8_is_refused_where_it_does_not_fit(te, device, model, arguments, error, text):
    with pytest.raises(error, match=text):
        te.make_graphed_callables(model().to(device), (sample(device),), **arguments)


def test_the_one_of_several_that_has_no_layers_is_named(te, device):
    models = (model_of(device), Layer().to(device))
    with pytest.raises(pianola.UnsupportedError, match=r"enabled: callable 2 \('Layer'\) has no layer that computes in 8 bits"):
        te.make_graphed_callables(models, samples(device, 2), enabled=True)


def test_calibration_and_8_bits_are_not_captured_at_once(te, device):
    with pytest.raises(pianola.UnsupportedError, match="calibrating: some callables are in 8 bits, and others are to be calibrated"):
        te.make_graphed_callables(tuple(model_of(device)), samples(device, 2), enabled=(True, False), calibrating=True)


def test_another_delayed_recipe_than_that_of_the_layers_is_refused(te, device):
    with pytest.raises(pianola.UsageError, match="convert the model with the region's recipe"):
        te.make_graphed_callables(model_of(device), (sample(device),), enabled=True, recipe=DelayedScaling(margin=1))


@pytest.mark.parametrize(
    "recipe, says",
    [
        (DelayedScaling(1, Format.E4M3, 16, "most_recent"), fp8.Recipe("delayed", "e4m3", 1, 16, "most_recent")),
        (DelayedScaling(), fp8.Recipe()),
        (Float8CurrentScaling(), fp8.Recipe("tensor")),
        (Float8BlockScaling(), fp8.Recipe("block", "e4m3")),
        (Float8BlockScaling(fp8_format=Format.HYBRID), fp8.Recipe("block")),
    ],
)
def test_recipes_are_taken_for_what_they_say(recipe, says):
    assert fp8.as_recipe(recipe) == says


def test_powers_of_two_are_what_quantisation_is_told():
    recipe = Float8CurrentScaling(use_power_2_scales=True)
    recipe.fp8_quant_fwd_inp = recipe.fp8_quant_fwd_weight = recipe.fp8_quant_bwd_grad = QParams(power_2_scale=True)
    assert fp8.as_recipe(recipe) == fp8.Recipe("tensor", powers_of_two=True)


@pytest.mark.parametrize(
    "recipe, text",
    [
        (MXFP8BlockScaling(), "MXFP8BlockScaling is not among the recipes of Pianola: blocks of 32 want GPUs from compute capability 10.0"),
        (NVFP4BlockScaling(), "NVFP4BlockScaling is not among the recipes of Pianola: products in 4 bits"),
        (type("CustomRecipe", (), {})(), "CustomRecipe is not among the recipes of Pianola: its quantizers"),
        (DelayedScaling(fp8_format=Format.E5M2), r"DelayedScaling\(fp8_format=E5M2\)"),
        (DelayedScaling(amax_compute_algo=max), "amax_compute_algo=a function"),
        (DelayedScaling(scaling_factor_compute_algo=max), "scaling_factor_compute_algo="),
        (DelayedScaling(fp8_dpa=True), r"DelayedScaling\(fp8_dpa=True\)"),
        (DelayedScaling(fp8_mha=True), r"DelayedScaling\(fp8_mha=True\)"),
        (DelayedScaling(backward_override="dequantized"), r"DelayedScaling\(backward_override='dequantized'\)"),
        (Float8CurrentScaling(use_power_2_scales=True), "Float8CurrentScaling whose power_2_scale differs"),
        (Float8CurrentScaling(fp8_gemm_fprop=MMParams()), "whose fp8_gemm_fprop has use_split_accumulator=True is not among"),
        (Float8BlockScaling(x_block_scaling_dim=2), r"Float8BlockScaling with blocks of \(2, 2, 1\) dimensions"),
        ("delayed", "a recipe is a pianola.fp8.Recipe, or one of Transformer Engine's, got a str"),
    ],
)
def test_recipes_that_are_not_computed_here_are_refused_by_name(te, device, recipe, text):
    for call in (
        lambda: te.make_graphed_callables(model_of(device), (sample(device),), enabled=True, recipe=recipe),
        lambda: fp8.convert(Layer(), recipe),
        lambda: fp8.autocast(recipe=recipe),
    ):
        with pytest.raises(pianola.Error, match=text):
            call()


def test_a_recipe_without_8_bits_is_not_looked_at(te, device):
    graphed = te.make_graphed_callables(model_of(device), (sample(device),), enabled=False, recipe=MXFP8BlockScaling())
    x = sample(device)
    assert_same("result", graphed(x), model_of(device)(x))
