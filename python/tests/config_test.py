"""pianola.CudaGraphConfig and its rules, as in C++."""

import copy
import json

import pianola
import pytest


def full_iteration(**values):
    return pianola.CudaGraphConfig(cuda_graph_impl="full_iteration", use_te_rng_tracker=True, te_rng_tracker=True, **values)


def test_a_configuration_has_attributes():
    config = pianola.CudaGraphConfig(cuda_graph_impl="callables", cuda_graph_modules=["attn", "mlp"], attention_dropout=0)
    assert config.cuda_graph_impl == "transformer_engine"
    assert config.cuda_graph_modules == ["attn", "mlp"]
    assert config.attention_dropout == 0.0
    assert config.check_for_nan_in_loss is None
    config.check_for_nan_in_loss = True
    config.moe_layer_freq = (0, 1)
    config.cuda_graph_modules = "attn"
    assert config.check_for_nan_in_loss is True
    assert config.moe_layer_freq == [0, 1]
    assert config.cuda_graph_modules == ["attn"]


def test_a_configuration_is_a_value():
    config = full_iteration(target="bridge")
    assert repr(config) == ("pianola.CudaGraphConfig(target='bridge', cuda_graph_impl='full_iteration', "
                            "use_te_rng_tracker=True, te_rng_tracker=True)")  # fmt: skip
    assert eval(repr(config)) == config
    for other in (copy.copy(config), copy.deepcopy(config)):
        assert other == config
        other.cuda_graph_warmup_steps = 11
        assert other != config


@pytest.mark.parametrize(
    "values, words",
    [
        ({"cuda_graph_imp": "local"}, "there is no key 'cuda_graph_imp'; did you mean 'cuda_graph_impl'?"),
        ({"cuda_graph_impl": "lokal"}, "got \"lokal\"; did you mean 'local'?"),
        ({"cuda_graph_warmup_steps": True}, "model.cuda_graph_warmup_steps: expected an integer, got true"),
        ({"cuda_graph_warmup_steps": None}, "model.cuda_graph_warmup_steps: expected an integer, got null"),
        ({"te_version": 2.1}, "env.te_version: expected a text, or null, got 2.1; write it in quotes"),
    ],
)
def test_a_value_without_meaning_is_refused(values, words):
    with pytest.raises(pianola.ConfigError) as raised:
        pianola.CudaGraphConfig(**values)
    assert words in str(raised.value)


def test_an_attribute_keeps_its_value_where_another_one_is_refused():
    config = pianola.CudaGraphConfig()
    with pytest.raises(pianola.ConfigError, match="expected true or false, got 1"):
        config.cpu_offloading = 1
    with pytest.raises(TypeError, match="expected None, a bool, a number, a str or a list"):
        config.cpu_offloading = object()
    assert config == pianola.CudaGraphConfig()


def test_an_attribute_that_is_none_is_refused():
    with pytest.raises(AttributeError):
        pianola.CudaGraphConfig().cuda_graph_imp = "local"


def test_a_check_finds_everything_and_fixes_what_can_be():
    config = full_iteration(target="megatron", cuda_graph_modules=["attn"], check_for_nan_in_loss=True)
    report = pianola.check_config(config)
    assert not report.ok
    assert report.exit_code == 3
    assert [(finding.rule, finding.outcome) for finding in report.findings] == [
        ("CF303", "fixed"), ("CF102", "error"), ("CF302", "error")]  # fmt: skip
    change = report.findings[0].changes[0]
    assert (change.key, change.before, change.after) == ("ddp.check_for_nan_in_grad", "unset", "false")
    assert report.findings[1].message == (
        'cuda_graph_modules = ["attn"] cannot be combined with cuda_graph_impl = full_iteration')
    assert report.config.check_for_nan_in_grad is False
    assert config.check_for_nan_in_grad is None
    assert json.loads(report.to_json())["errors"] == 2
    assert str(report) == report.to_text()


def test_nan_checks_stay_on_in_pianolas_own_graphs():
    config = full_iteration(check_for_nan_in_loss=True, check_for_nan_in_grad=True)
    assert pianola.check_config(config).findings == []


def test_every_error_is_named_before_a_capture():
    pianola.require_valid(full_iteration())
    with pytest.raises(pianola.ConfigError) as raised:
        pianola.require_valid(full_iteration(cuda_graph_warmup_steps=-1, variable_seq_lengths=True))
    assert "the configuration has 2 errors:\n  - CF104: " in str(raised.value)
    assert "\n  - CF606: " in str(raised.value)


def test_the_environment_fills_in_what_is_not_said(monkeypatch):
    monkeypatch.setenv("NCCL_GRAPH_REGISTER", "0")
    assert pianola.with_environment(pianola.CudaGraphConfig()).nccl_graph_register == 0
    assert pianola.with_environment(pianola.CudaGraphConfig(nccl_graph_register=1)).nccl_graph_register == 1


def test_a_file_is_loaded(tmp_path):
    path = tmp_path / "run.json"
    path.write_text('{"model": {"enable_cuda_graph": true}, "rng": {"te_rng_tracker": true}, "logger": {"steps": 1}}')
    with pytest.raises(pianola.ConfigError, match="logger.steps: there is no such key"):
        pianola.load_config(path)
    config = pianola.load_config(str(path), allow_other_keys=True)
    assert config == pianola.CudaGraphConfig(cuda_graph_impl="local", te_rng_tracker=True)


def test_a_missing_file_is_named():
    with pytest.raises(pianola.UsageError, match="cannot read the configuration '/no/such.json'"):
        pianola.load_config("/no/such.json")


def test_rules_are_listed():
    rules = {rule["id"]: rule for rule in pianola.config_rules()}
    assert len(rules) > 70
    assert rules["CF302"]["outcome"] == "error"
    assert rules["CF302"]["targets"] == ["megatron", "bridge"]
    assert all(rule["reason"] and rule["advice"] and rule["message"] and rule["title"] for rule in rules.values())
