"""Makes docs/reference/configuration.md from the rules and keys of the library, as the program lists them.

    config_doc.py            write the page
    config_doc.py --check    fail if the page is not what the program makes

The program is PIANOLA_PROGRAM, or that of the release build.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from generated_pages import ROOT, write_or_check

PAGE = ROOT / "docs/reference/configuration.md"
PROGRAM = os.environ.get("PIANOLA_PROGRAM", str(ROOT / "build/release/apps/pianola"))

HEAD = """# Configuration

This page is for users of Megatron-LM and Megatron-Bridge: it checks the CUDA-graph settings of their configurations. Nobody else
needs it. `tools/config_doc.py` makes it from the library (`pianola config rules`, `pianola config keys`).

These frameworks have dozens of settings that affect CUDA graphs, and most combinations do not work: some fail at the capture, some
after hours, some compute something else. Pianola checks all settings before anything is captured and reports every error at once.
The check needs no GPU and no framework.

```console
$ pianola config check examples/configuration/full_iteration.json
```

A file is JSON or YAML (`.yaml`, `.yml`). YAML needs a Pianola that was built with yaml-cpp (Debian package `libyaml-cpp-dev`). Keys
stand in sections, as in Megatron-Bridge's configuration, or by name alone at the top level. For this file

```json
{contradictory}
```

the program says

<!-- not run: it finds errors, which is exit code 3 -->
```console
$ pianola config check examples/configuration/contradictory.json
{checked}
```

Exit code 0: the configuration is valid. 3: it has errors. 1: the file cannot be used. Unknown keys, values of the wrong type and
contradicting synonyms are refused, all at once; for an unknown key the nearest known one is shown. `--json` prints the report for
programs. `--allow-other-keys` skips keys that have nothing to do with graphs, as in a framework's whole configuration. `--environment`
reads what the file leaves open from `PYTORCH_CUDA_ALLOC_CONF`, `NCCL_GRAPH_REGISTER` and `CUDA_GRAPHS_USE_NODE_PRIORITY`.

The same from Python and C++:

```python
import pianola

config = pianola.CudaGraphConfig(target="bridge", cuda_graph_impl="full_iteration", check_for_nan_in_loss=True)
report = pianola.check_config(config)
for finding in report.findings:
    print(finding.rule, finding.outcome, [(change.key, change.after) for change in finding.changes])
```
```text
CF202 fixed [('model.use_te_rng_tracker', 'true'), ('rng.te_rng_tracker', 'true')]
CF303 fixed [('ddp.check_for_nan_in_grad', 'false')]
CF302 error []
```

```cpp
pianola::CudaGraphConfig config = pianola::load_config("run.yaml").config;
pianola::require_valid(config);  // throws a ConfigError that names every error
```

## Targets

`target` says whose graphs the configuration is for, because some rules belong to one implementation: `pianola` (default),
`megatron` for Megatron-LM, `bridge` for Megatron-Bridge, which drives Megatron-LM and adds rules. `pianola config check --target`
overrides the file.

One difference matters most. A check for NaN in the loss or in the gradients reads a value on the host, so Megatron-LM and
Megatron-Bridge need it off when the full iteration is captured (CF301 to CF304). In Pianola it stays on: its checks set a flag on the
device, and the host reads it one step later, without waiting.

`cuda_graph_impl` takes Megatron's names, and Pianola's names for the same things:

| value | also called | what is captured |
| --- | --- | --- |
| `none` | | nothing |
| `local` | `per_layer` | layers or modules, while training goes on |
| `transformer_engine` | `callables` | layers or modules, ahead, by `make_graphed_callables` |
| `full_iteration` | `iteration` | forward and backward passes of all microbatches, in one graph |

## Old names

Pianola reads files with old names, and `pianola config migrate FILE` prints them with the new ones:

| old | today |
| --- | --- |
| `enable_cuda_graph: true` | `cuda_graph_impl: local` |
| `external_cuda_graph: true` | `cuda_graph_impl: transformer_engine` |
| `cuda_graph_num_warmup_steps` | `cuda_graph_warmup_steps` |
| `cuda_graph_share_io_buffers` | nothing: buffers are shared wherever their lifetimes allow it |
| `cuda_graph_scope` | `cuda_graph_modules` |
| module `full` | no modules: whole layers |
| module `full_iteration` | `cuda_graph_impl: full_iteration` |
| module `full_iteration_inference` | `inference_cuda_graph_scope: block` |

An old name that contradicts a new one is an error, and so are old names that exclude each other.

## What rules do

The id of a rule never changes; `pianola config explain CF302` explains one. You correct an **error**. Pianola changes what is **fixed** and
prints the old and the new value: it fills in what was left open, or removes what has no effect. A **warning** changes nothing. Fixes
come first; the other rules see their result. A rule about a version or about compute capability is skipped if that is unknown.

Two things no configuration can tell: how much memory a GPU has left, and that graphs must be destroyed before NCCL's communicators at
the end of a training.
"""

GROUPS = {
    1: "Implementation and modules",
    2: "Random numbers",
    3: "Checks and optimizer",
    4: "Experts",
    5: "Recomputation, dropout and offloading",
    6: "Shapes and packing",
    7: "Communication and sharding",
    8: "Versions and environment",
    9: "Inference and reinforcement learning",
}


def config(*arguments, codes=(0,)):
    """What `pianola config ...` prints."""
    if not Path(PROGRAM).exists():
        raise SystemExit(f"there is no program '{PROGRAM}': build it, or set PIANOLA_PROGRAM")
    ran = subprocess.run([PROGRAM, "config", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60)
    if ran.returncode not in codes:
        raise SystemExit(f"{PROGRAM} config {' '.join(arguments)}: {ran.stderr or ran.stdout}")
    return ran.stdout


def cell(text):
    return text.replace("|", "\\|")


def group_of(rule):
    return int(rule["id"].removeprefix("CF")) // 100


def table_of(rules):
    lines = ["| rule | outcome | for | when | why | what to do, or what is done |", "| --- | --- | --- | --- | --- | --- |"]
    for rule in rules:
        targets = "all" if rule["targets"].count(",") == 2 else rule["targets"]
        cells = [rule["outcome"], targets, rule["title"], rule["reason"], rule["advice"]]
        lines.append(f'| <a id="{rule["id"].lower()}"></a>{rule["id"]} | ' + " | ".join(map(cell, cells)) + " |")
    return "\n".join(lines)


def keys_table(keys):
    lines = ["| key | default | accepts | meaning |", "| --- | --- | --- | --- |"]
    lines += [f"| `{key['key']}` | `{key['default']}` | {cell(key['accepts'])} | {cell(key['meaning'])} |" for key in keys]
    return "\n".join(lines)


def page():
    rules = json.loads(config("rules", "--json"))["rules"]
    keys = json.loads(config("keys", "--json"))["keys"]
    example = "examples/configuration/contradictory.json"
    head = HEAD.replace("{contradictory}", (ROOT / example).read_text().rstrip("\n"))
    parts = [head.replace("{checked}", config("check", example, codes=(3,)).rstrip("\n"))]
    for number, title in GROUPS.items():
        parts.append(f"### {title}\n\n{table_of([rule for rule in rules if group_of(rule) == number])}\n")
    parts.append(f"## Keys\n\n{keys_table(keys)}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(write_or_check(__doc__, lambda: {PAGE: page()}))
