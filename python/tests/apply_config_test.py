"""Layers and parts of them as a configuration names them: `pianola.apply_config`."""

import pianola
import pytest
from layer_programs import Gpt, assert_equal, loss_of, plain, replays_of


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


def test_a_model_in_8_bits_trains_as_eager(device):
    def converted():
        return pianola.fp8.convert(Gpt(), pianola.fp8.Recipe(amax_history_length=4))

    def in_region(model, optimizer, step, device):
        optimizer.zero_grad()
        with pianola.fp8.autocast():
            loss = loss_of(model, step, device, batch=4)
        loss.backward()
        optimizer.step()
        return [loss]

    assert_equal(converted, in_region, device, steps=20, graph=configured("mlp", fp8="hybrid", fp8_recipe="delayed"))


@pytest.mark.parametrize(
    "keys, text",
    [
        (dict(fp8="e4m3"), "fp8 is e4m3, and layer 'h.0.* was made with delayed scaling, e4m3 and e5m2"),
        (dict(fp8="hybrid", fp8_recipe="tensorwise"), "fp8_recipe is tensorwise, and layer 'h.0.* was made with delayed scaling"),
        (dict(fp8="hybrid", fp8_recipe="mxfp8"), "fp8_recipe is mxfp8, which is not among the recipes of Pianola"),
        (dict(fp4="e2m1"), "fp4 is e2m1, and Pianola has no products in 4 bits"),
    ],
)
def test_other_products_than_the_model_has_are_refused(cpu, keys, text):
    with pytest.raises(pianola.ConfigError, match=text):
        configured(**keys)(pianola.fp8.convert(Gpt()))


def test_a_model_without_products_in_8_bits_is_refused_where_they_are_wanted(cpu):
    with pytest.raises(pianola.ConfigError, match="fp8 is hybrid, and the model has no layer that computes in 8 bits"):
        configured(fp8="hybrid")(Gpt())


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
