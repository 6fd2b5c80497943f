"""`pianola config` as a user meets it. PIANOLA_PROGRAM is the path of the binary."""

import json
import os
import subprocess

import pytest

PROGRAM = os.path.abspath(os.environ["PIANOLA_PROGRAM"])
# A full iteration of Megatron-Bridge, as its documentation has it.
FULL_ITERATION = {
    "target": "bridge",
    "model": {"cuda_graph_impl": "full_iteration", "cuda_graph_warmup_steps": 3, "use_te_rng_tracker": True},
    "rng": {"te_rng_tracker": True},
    "rerun_state_machine": {"check_for_nan_in_loss": False},
    "ddp": {"check_for_nan_in_grad": False},
}
WRONG = {
    "target": "bridge",
    "model": {"cuda_graph_impl": "full_iteration", "cuda_graph_modules": ["attn"], "use_te_rng_tracker": True},
    "rerun_state_machine": {"check_for_nan_in_loss": True},
}


def run(*arguments, **environment):
    return subprocess.run([PROGRAM, "config", *map(str, arguments)], capture_output=True, text=True, timeout=60,
                          env={**os.environ, **environment})


@pytest.fixture
def file(tmp_path):
    def write(contents, name="run.json"):
        path = tmp_path / name
        path.write_text(contents if isinstance(contents, str) else json.dumps(contents))
        return path

    return write


@pytest.fixture
def yaml_file(file):
    """As `file`, where the program reads YAML."""
    if "was built without" in (refusal := run("check", file("a: 1", "probe.yaml")).stderr) or "cannot read" in refusal:
        pytest.skip("built without yaml-cpp")
    return lambda contents: file(contents, "run.yaml")


def test_help_lists_the_commands():
    result = run("--help")
    assert result.returncode == 0
    for word in ("check", "migrate", "explain", "rules", "keys"):
        assert word in result.stdout


@pytest.mark.parametrize(
    "arguments, words",
    [
        ([], ["subcommand"]),
        (["check"], ["file"]),
        (["check", "run.json", "--target", "tensorflow"], ["--target", "tensorflow"]),
        (["check", "run.json", "--colour"], ["--colour"]),
        (["explain"], ["rule"]),
        (["explain", "CF1"], ["there is no configuration rule 'CF1'"]),
        (["migrate"], ["file"]),
        (["dance"], ["subcommand"]),
    ],
)
def test_a_wrong_command_line_is_one_sentence_and_a_hint(arguments, words):
    result = run(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    message, hint = result.stderr.splitlines()
    assert message.startswith("pianola: ")
    assert all(word in message for word in words)
    assert hint == "Try 'pianola config --help'."


def test_a_valid_configuration_is_shown(file):
    result = run("check", file(FULL_ITERATION))
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("Configuration for bridge: valid: 0 errors, 0 fixed, 0 warnings\n")
    assert "model.cuda_graph_impl" in result.stdout
    assert '"full_iteration"' in result.stdout


def test_everything_that_is_wrong_is_said_at_once(file):
    result = run("check", file(WRONG))
    assert (result.returncode, result.stderr) == (3, "")
    assert "not valid: 2 errors, 2 fixed, 0 warnings" in result.stdout
    for words in ("CF102 error: cuda_graph_modules = [\"attn\"] cannot be combined", "CF302 error: check_for_nan_in_loss",
                  "CF201 fixed", "fixed: rng.te_rng_tracker: unset -> true",
                  "fixed: ddp.check_for_nan_in_grad: unset -> false"):  # fmt: skip
        assert words in result.stdout


def test_the_target_decides(file):
    result = run("check", file({**WRONG, "model": {**WRONG["model"], "cuda_graph_modules": []}}), "--target", "pianola")
    assert result.returncode == 0
    assert "Configuration for pianola: valid: 0 errors, 1 fixed, 0 warnings" in result.stdout


def test_the_json_can_be_checked_again(file):
    result = run("check", file(WRONG), "--json")
    assert (result.returncode, result.stderr) == (3, "")
    report = json.loads(result.stdout)
    assert [found["rule"] for found in report["findings"]] == ["CF201", "CF303", "CF102", "CF302"]
    assert report["ok"] is False
    assert report["configuration"]["ddp"]["check_for_nan_in_grad"] is False
    again = json.loads(run("check", file(report["configuration"]), "--json").stdout)
    assert [found["rule"] for found in again["findings"]] == ["CF102", "CF302"]
    assert again["configuration"] == report["configuration"]


def test_the_environment_is_looked_at_where_it_is_asked_for(file):
    path = file({**FULL_ITERATION, "model": {**FULL_ITERATION["model"], "cuda_graph_impl": "transformer_engine"}})
    environment = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "NCCL_GRAPH_REGISTER": "1"}
    assert run("check", path, **environment).returncode == 0
    result = run("check", path, "--environment", **environment)
    assert result.returncode == 3
    assert "CF801 error" in result.stdout
    assert run("check", path, "--environment", **{**environment, "NCCL_GRAPH_REGISTER": "0"}).returncode == 0


def test_old_names_are_read_and_told(file):
    result = run("check", file({"enable_cuda_graph": True, "cuda_graph_scope": ["full_iteration"]}))
    assert result.returncode == 0
    assert "enable_cuda_graph = true is now cuda_graph_impl = local" in result.stdout
    assert "is now cuda_graph_impl = full_iteration" in result.stdout


def test_old_names_are_migrated(file):
    path = file({"model": {"hidden_size": 64, "external_cuda_graph": True, "cuda_graph_scope": "full"}})
    result = run("migrate", path)
    assert result.returncode == 0
    assert json.loads(result.stdout) == {
        "model": {"hidden_size": 64, "cuda_graph_impl": "transformer_engine", "cuda_graph_modules": []}
    }
    assert "model.external_cuda_graph = true is now cuda_graph_impl = transformer_engine\n" in result.stderr


@pytest.mark.parametrize(
    "contents, words",
    [
        ({"model": {"cuda_graph_imp": "local"}}, ["1 problem", "did you mean 'model.cuda_graph_impl'?", "config keys"]),
        ({"model": {"cuda_graph_warmup_steps": "3"}}, ["cuda_graph_warmup_steps: expected an integer, got \"3\""]),
        ({"enable_cuda_graph": True, "cuda_graph_impl": "full_iteration"}, ["contradict each other"]),
        ({"cuda_graph_impl": "lokal", "colour": 1}, ["2 problems", "did you mean 'local'?", "colour"]),
        ('{"model": ', ["is no JSON", "line 1"]),
        ("[]", ["is no configuration"]),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(file, contents, words):
    result = run("check", file(contents))
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("pianola: '")
    assert all(word in result.stderr for word in words), result.stderr


def test_a_missing_file_is_named():
    result = run("check", "/no/such.json")
    assert result.returncode == 1
    assert result.stderr.startswith("pianola: cannot read the configuration '/no/such.json': No such file or directory\n")


@pytest.mark.parametrize(
    "contents, words",
    [
        ("", "is empty"),
        ('{"model": ' + "[" * 100_000 + "]" * 100_000 + "}", "is nested more than 64 deep"),
        ("[" * 1_000_000, "is nested more than 64 deep"),
        ('{"model": {"cuda_graph_warmup_steps": 1e400}}', "is no JSON"),
        ('{"model": {"cuda_graph_warmup_steps": NaN}}', "is no JSON"),
        ('{"model": {"cuda_graph_warmup_steps": 18446744073709551616}}', "expected an integer"),
        ('{"model": {"cuda_graph_warmup_steps": 9223372036854775807}}', "that is too large"),
        ('{"target": "bridge", "target": "pianola"}', "duplicate key 'target'"),
        ('{"target": "bri\\u0000dge"}', "got \"bri?dge\""),
    ],
    ids=[
        "empty", "deep", "deep and open", "infinite", "nan", "beyond 64 bits", "largest of 64 bits", "key twice", "nul byte",
    ],  # of their own: pytest puts the id into the environment of the program
)  # fmt: skip
def test_a_hostile_file_is_refused_with_its_name(file, contents, words):
    path = file(contents)
    result = run("check", path)
    assert (result.returncode, result.stdout) == (1, ""), result
    assert result.stderr.startswith("pianola: ") and str(path) in result.stderr
    assert words in result.stderr


def test_bytes_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "run.json"
    path.write_bytes(b'{"target": "bri\xff\xfedge"}')
    result = run("check", path)
    assert result.returncode == 1
    assert f"'{path}' is no JSON" in result.stderr


@pytest.mark.parametrize("path, words", [("/tmp", "Is a directory"), ("/dev/zero", "more than 16 MiB")])
def test_what_is_no_file_of_keys_is_refused(path, words):
    result = run("check", path)
    assert result.returncode == 1
    assert f"cannot read the configuration '{path}': " in result.stderr and words in result.stderr


@pytest.mark.parametrize("arguments", [("check", "--json"), ("check",), ("migrate",), ("rules",), ("--help",)])
def test_a_report_that_cannot_be_written_says_so(file, arguments):
    command, *options = arguments
    files = [str(file(WRONG))] if command in ("check", "migrate") else []
    with open("/dev/full", "w") as full:
        result = subprocess.run([PROGRAM, "config", command, *files, *options], stdout=full, stderr=subprocess.PIPE,
                                text=True, timeout=60)
    assert result.returncode == 1
    assert "pianola: cannot write to standard output: No space left on device" in result.stderr


def test_a_closed_standard_error_is_no_crash():
    result = subprocess.run(f"'{PROGRAM}' config check /no/such.json 2>&-", shell=True, timeout=60)
    assert result.returncode == 1


def test_a_frameworks_whole_configuration_can_be_checked(file):
    path = file({**FULL_ITERATION, "logger": {"log_interval": 10}})
    assert run("check", path).returncode == 1
    result = run("check", path, "--allow-other-keys")
    assert result.returncode == 0
    assert "not looked at: logger.log_interval" in result.stdout


def test_yaml_is_read_as_json_is(yaml_file, file):
    path = yaml_file("target: bridge\nmodel:\n  cuda_graph_impl: full_iteration\nrng: {te_rng_tracker: true}\n")
    ours = json.loads(run("check", path, "--json").stdout)
    same = file({"target": "bridge", "model": {"cuda_graph_impl": "full_iteration"}, "rng": {"te_rng_tracker": True}})
    assert ours == json.loads(run("check", same, "--json").stdout)


def test_yaml_without_support_says_what_to_install(file):
    result = run("check", file("model: {}", "run.yaml"))
    if result.returncode == 0:
        pytest.skip("built with yaml-cpp")
    assert result.returncode == 1
    assert "libyaml-cpp-dev" in result.stderr


def test_a_rule_is_explained():
    result = run("explain", "CF302")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("CF302 (error): the whole iteration is captured, and the loss is looked at\n")
    assert "Pianola keeps it" in result.stdout


def test_rules_and_keys_are_listed():
    rules = json.loads(run("rules", "--json").stdout)["rules"]
    assert len(rules) > 70
    assert {"id", "outcome", "targets", "title", "message", "advice", "reason"} == rules[0].keys()
    text = run("rules").stdout
    assert all(rule["id"] in text and rule["title"] in text for rule in rules)
    keys = json.loads(run("keys", "--json").stdout)["keys"]
    assert {"key", "default", "accepts", "meaning"} == keys[0].keys()
    text = run("keys").stdout
    assert all(f"{key['key']} = {key['default']}\n    {key['meaning']}\n" in text for key in keys)
