"""Pianola imports no trainer by itself, and an integration says what to install."""

import subprocess
import sys

import pytest

PACKAGES = ("transformers", "accelerate", "lightning", "pytorch_lightning")


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)


def test_pianola_imports_none_of_them():
    ran = run(f"import sys, pianola, pianola.integrations; print([name for name in {PACKAGES} if name in sys.modules])")
    assert ran.returncode == 0 and ran.stdout.strip() == "[]", ran.stdout + ran.stderr


@pytest.mark.parametrize(
    "module, named, install",
    [
        ("transformers", "transformers", "transformers accelerate"),
        ("lightning", "lightning.pytorch or pytorch_lightning", "lightning"),
        ("accelerate", "accelerate", "accelerate"),
    ],
)
def test_a_package_that_is_missing_is_named(module, named, install):
    hidden = "; ".join(f"sys.modules[{name!r}] = None" for name in PACKAGES)
    ran = run(f"import sys, pianola; {hidden}\nimport pianola.integrations.{module}")
    assert ran.returncode == 1
    assert f"the integration needs {named}, which is not installed\n  fix:   pip install {install}" in ran.stderr
