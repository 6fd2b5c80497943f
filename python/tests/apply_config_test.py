"""Layers and parts of them as a configuration names them: `pianola.apply_config`."""

import copy
import inspect
import weakref

import pianola
import pytest
import torch
from layer_programs import Gpt, assert_equal, loss_of, plain, replays_of
from twins import assert_same, assert_same_state


def configured(*modules, **more):
    return lambda model: pianola.apply_config(
        model, pianola.CudaGraphConfig(cuda_graph_impl="local", cuda_graph_modules=list(modules), **more)
    )


SCOPES = {
    "attn": ("attn", ["h.0.attn", "h.1.attn", "h.2.attn", "h.3.attn"]),
    "mlp": ("mlp", ["h.0.mlp", "h.2.mlp"]),
    "moe_router": ("moe_router", ["h.1.mlp.gate", "h.3.mlp.gate"]),
    "whole layers": ("", ["h.0", "h.1", "h.2", "h.3"]),
    "attn and mlp": ("attn mlp", ["h.0.attn", "h.0.mlp", "h.1.attn", "h.2.attn", "h.2.mlp", "h.3.attn"]),
}


@pytest.mark.parametrize("scope", SCOPES)
def test_each_scope_of_a_configuration_trains_as_eager(scope, device):
    modules, names = SCOPES[scope]
    graph = configured(*modules.split(), num_moe_experts=4, moe_layer_freq=[0, 1, 0, 1])
    _, graphed = assert_equal(lambda: Gpt(layers=4, moe=True), plain, device, graph=graph, replays=0)
    assert list(graphed.names) == names
    never = [name for name, count in replays_of(graphed).items() if count < 40]
    assert never == (["h.1", "h.3"] if scope == "whole layers" else []), graphed.info()


def test_a_part_that_two_layers_have_is_graphed_once(device):
    class Tied(Gpt):
        def __init__(self):
            super().__init__()
            self.h[2].mlp = self.h[0].mlp

    _, graphed = assert_equal(Tied, plain, device, steps=20, graph=configured("mlp"))
    assert graphed.names == ("h.0.mlp", "h.1.mlp")


def test_an_option_that_is_refused_leaves_all_layers_as_they_are(cpu):
    model = Gpt()
    with pytest.raises(pianola.UsageError, match="warmup must be 1 or more"):
        pianola.graph_layers(model, warmup=0)
    assert all("forward" not in block.__dict__ for block in model.h)


def test_a_configuration_of_none_leaves_the_model_alone(cpu):
    model = Gpt()
    graphed = pianola.apply_config(model, pianola.CudaGraphConfig())
    assert len(graphed) == 0 and all("forward" not in module.__dict__ for module in model.modules())


def in_region(model, optimizer, step, device):
    optimizer.zero_grad()
    with pianola.fp8.autocast():
        loss = loss_of(model, step, device, batch=4)
    loss.backward()
    optimizer.step()
    return [loss]


def test_a_model_in_8_bits_trains_as_eager(device):
    def converted():
        return pianola.fp8.convert(Gpt(), pianola.fp8.Recipe(amax_history_length=4))

    assert_equal(converted, in_region, device, steps=20, graph=configured("mlp", fp8="hybrid", fp8_recipe="delayed"))


@pytest.mark.parametrize(
    "keys, text",
    [
        (dict(fp8="e4m3"), "the configuration says delayed scaling, e4m3.*, and layer 'h.0.* was made with delayed scaling, e4m3 and e5m2"),
        (dict(fp8="hybrid", fp8_recipe="tensorwise"), "the configuration says tensor.*, and layer 'h.0.* was made with delayed scaling"),
        (dict(fp8="hybrid", fp8_recipe="mxfp8"), "fp8_recipe is mxfp8, which is not among the recipes of Pianola"),
        (dict(fp4="e2m1"), "fp4 is e2m1, and Pianola has no products in 4 bits"),
    ],
)
def test_other_products_than_the_model_has_are_refused(cpu, keys, text):
    with pytest.raises(pianola.ConfigError, match=text):
        configured(**keys)(pianola.fp8.convert(Gpt()))


def in_8_bits(model):
    return [name for name, one in model.named_modules() if isinstance(one, pianola.fp8.Float8Linear)]


def plain_of_four(model, optimizer, step, device):
    optimizer.zero_grad()
    loss = loss_of(model, step, device, batch=4)
    loss.backward()
    optimizer.step()
    return [loss]


MEGATRONS = {
    "delayed": (dict(fp8_recipe="delayed", fp8_margin=1, fp8_amax_history_len=4, fp8_amax_compute_algo="max"), dict(margin=1, amax_history_length=4)),
    "Megatron's defaults": (dict(), dict(amax_history_length=1, amax_compute="most_recent")),
    "tensorwise": (dict(fp8_recipe="tensorwise"), dict(scaling="tensor")),
}


@pytest.mark.parametrize("keys", MEGATRONS)
def test_layers_are_converted_and_the_model_opens_the_region(keys, device):
    """Beside a model that the user converts, in regions that the user opens."""
    said, recipe = MEGATRONS[keys]

    def linears_of_blocks(name, linear):
        return name.startswith("h.") and linear.in_features % 16 == 0

    ours, theirs = Gpt().to(device), Gpt().to(device)
    theirs.load_state_dict(ours.state_dict())
    pianola.fp8.convert(theirs, pianola.fp8.Recipe(**recipe), linears_of_blocks)
    graphed = configured("attn", fp8="hybrid", **said)(ours)
    assert in_8_bits(ours) == in_8_bits(theirs) and "head" not in in_8_bits(ours)
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-2) for model in (ours, theirs)]
    for step in range(50):
        torch.manual_seed(step)
        (loss,) = plain_of_four(ours, optimizers[0], step, device)
        torch.manual_seed(step)
        (expected,) = in_region(theirs, optimizers[1], step, device)
        assert_same(f"loss {step}", loss, expected)
        assert_same_state(ours, theirs)
    assert min(replays_of(graphed).values()) >= 40, graphed.info()
    assert not pianola.fp8.open_regions()


def test_the_first_and_last_layers_stay_out_of_8_bits(cpu):
    model = Gpt(layers=5)
    configured(fp8="e4m3", first_last_layers_bf16=True, num_layers_at_end_in_bf16=2)(model)
    assert {name.split(".")[1] for name in in_8_bits(model)} == {"1", "2"}


@pytest.mark.parametrize("name", ["experts", "local_experts"])
def test_experts_whose_tokens_are_not_padded_stay_out_of_8_bits(cpu, name):
    for padded in (False, True):
        model = Gpt(layers=2, moe=True)
        model.h[1].mlp.add_module(name, model.h[1].mlp._modules.pop("experts"))
        configured("attn", fp8="hybrid", moe_router_padding_for_fp8=padded)(model)
        assert any("experts" in name for name in in_8_bits(model)) == padded and "h.1.mlp.gate" not in in_8_bits(model)


def test_a_configuration_without_graphs_converts_all_the_same(cpu):
    model = Gpt()
    assert len(pianola.apply_config(model, pianola.CudaGraphConfig(fp8="hybrid"))) == 0
    assert in_8_bits(model)


def test_an_exception_in_the_model_closes_its_region(cpu):
    model = Gpt()
    configured(fp8="hybrid")(model)
    with pytest.raises(IndexError):
        model(torch.full((4, 12), 10_000))
    assert not pianola.fp8.open_regions()


def test_an_interrupt_in_the_model_closes_its_region(cpu):
    class Interrupted(Gpt):
        def embed(self, ids):
            raise KeyboardInterrupt

    model = Interrupted()
    configured(fp8="hybrid")(model)
    with pytest.raises(KeyboardInterrupt):
        model(torch.ones(4, 12, dtype=torch.int64))
    assert not pianola.fp8.open_regions()


def test_a_model_that_a_configuration_converted_is_freed_and_has_its_signature(cpu):
    model = Gpt()
    pianola.apply_config(model, pianola.CudaGraphConfig(fp8="hybrid"))
    assert list(inspect.signature(model.forward).parameters) == ["ids"]
    alive = weakref.ref(model)
    del model
    assert alive() is None


def test_a_model_in_a_group_is_copied_and_not_pickled(cpu, tmp_path):
    class Group:
        def __deepcopy__(self, memo):
            raise TypeError("a process group cannot be copied")

    model = Gpt()
    pianola.apply_config(model, pianola.CudaGraphConfig(fp8="hybrid", fp8_recipe="tensorwise"), fp8_group=Group())
    assert in_8_bits(copy.deepcopy(model)) == in_8_bits(model)
    with pytest.raises(pianola.ConfigError, match="a model whose fp8_group is a process group cannot be pickled"):
        torch.save(model, tmp_path / "model.pt")


def test_more_layers_out_of_8_bits_than_there_are_is_all(cpu):
    with pytest.raises(pianola.ConfigError, match="no layer of the model has an nn.Linear that can compute in 8 bits"):
        configured(fp8="hybrid", first_last_layers_bf16=True, num_layers_at_end_in_bf16=5)(Gpt(layers=4))


def test_a_converted_model_keeps_its_scaling_where_none_is_said(cpu):
    model = pianola.fp8.convert(Gpt(), pianola.fp8.Recipe("row"))
    configured("attn", fp8="hybrid")(model)
    assert {one.recipe.scaling for one in model.modules() if isinstance(one, pianola.fp8.Float8Linear)} == {"row"}


def test_a_model_that_a_configuration_converted_is_copied_and_saved(cpu, tmp_path):
    model = Gpt()
    pianola.apply_config(model, pianola.CudaGraphConfig(fp8="hybrid"))
    model.eval()
    torch.save(model, tmp_path / "model.pt")
    ids = torch.arange(48).view(4, 12)
    expected = copy.deepcopy(model)(ids)
    assert torch.equal(torch.load(tmp_path / "model.pt", weights_only=False)(ids), expected)
    assert torch.equal(model(ids), expected)


@pytest.mark.parametrize(
    "keys, text",
    [
        (dict(fp8_wgrad=False), "fp8_wgrad is false, and Pianola does not compute that: weight gradients are products in 8 bits"),
        (dict(fp8_param=True), "fp8_param is true, and Pianola does not compute that: weights stay in the model's dtype"),
        (dict(fp8_dot_product_attention=True), "fp8_dot_product_attention is true, .* linear layers alone compute in 8 bits"),
        (dict(fp8_multi_head_attention=True), "fp8_multi_head_attention is true, .* linear layers alone compute in 8 bits"),
        (dict(fp8_recipe="blockwise"), "fp8 is hybrid, and no layer of the model has an nn.Linear that can compute in 8 bits"),
        (dict(fp8_amax_compute_algo="mean"), "mean"),
        (dict(fp8_amax_history_len=0), "history"),
        (dict(cuda_graph_modules=["mamba"]), "the scope mamba names no part of Gpt"),
        (dict(first_last_layers_bf16=True, num_layers_at_start_in_bf16=-1), "num_layers_at_start_in_bf16 is -1"),
    ],
)
def test_what_is_refused_leaves_the_model_unconverted(cpu, keys, text):
    model = Gpt()
    state = list(model.state_dict())
    with pytest.raises(pianola.Error, match=text):
        pianola.apply_config(model, pianola.CudaGraphConfig(**{"cuda_graph_impl": "local", "fp8": "hybrid", **keys}))
    assert not in_8_bits(model) and list(model.state_dict()) == state and "forward" not in vars(model)


def test_the_keys_of_a_configuration_act(cpu):
    config = pianola.CudaGraphConfig(
        cuda_graph_impl="transformer_engine", cuda_graph_warmup_steps=5, cuda_graph_retain_backward_graph=True
    )
    _, graphed = assert_equal(Gpt, plain, "cpu", steps=12, graph=lambda model: pianola.apply_config(model, config), replays=7)
    assert graphed["h.0"].info().signatures[0].eager_calls == 5
    model = Gpt()
    pianola.apply_config(model, config)
    for step in range(8):
        loss = loss_of(model, step, "cpu")
        loss.backward(retain_graph=True)
        loss.backward()


def test_a_configuration_file_is_read(tmp_path, cpu):
    file = tmp_path / "config.json"
    file.write_text('{"enable_cuda_graph": true, "cuda_graph_scope": ["attn"], "cuda_graph_num_warmup_steps": 2}')
    graphed = pianola.apply_config(Gpt(), file)
    assert graphed.names == ("h.0.attn", "h.1.attn", "h.2.attn")


def test_parts_may_be_named_by_the_user(cpu):
    config = pianola.CudaGraphConfig(cuda_graph_impl="local", cuda_graph_modules=["attn", "mamba"])
    graphed = pianola.apply_config(Gpt(), config, parts={"mamba": "h.*.norm1"})
    assert graphed.names == tuple(f"h.{i}.{part}" for i in range(3) for part in ("norm1", "attn"))


def test_a_part_of_a_name_that_is_no_scope_is_refused(cpu):
    config = pianola.CudaGraphConfig(cuda_graph_impl="local", cuda_graph_modules=["attn"])
    with pytest.raises(pianola.ConfigError, match="parts names 'atn', which is no scope; 'attn' is near"):
        pianola.apply_config(Gpt(), config, parts={"atn": "h.*.attn"})


@pytest.mark.parametrize(
    "config, message",
    [
        (dict(cuda_graph_impl="local", cuda_graph_modules=["mamba"]), "the scope mamba names no part of Gpt: none of its 3 layers"),
        (dict(cuda_graph_impl="full_iteration"), "cuda_graph_impl is full_iteration, which graphs a step and not a model"),
        (dict(cuda_graph_impl="local", cuda_graph_modules=["moe"]), "CF404"),
        (
            dict(cuda_graph_impl="local", cuda_graph_modules=["moe_router"], num_moe_experts=4),
            "the scope moe_router names no part of Gpt",
        ),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(config, message, cpu):
    model = Gpt()
    with pytest.raises(pianola.ConfigError, match=message):
        pianola.apply_config(model, pianola.CudaGraphConfig(**config))
    assert all("forward" not in module.__dict__ for module in model.modules())
