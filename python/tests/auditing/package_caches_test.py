"""Containers of installed packages: a cache that one run fills is no hazard, a record of each call is."""

import importlib
import sys

import pytest
import torch

import pianola
from pianola._audit import files

PACKAGE = """
_cache = {}
_record = []

def scale(size):
    if size not in _cache:
        _cache[size] = size ** -0.5
    return _cache[size]

def noted(x):
    _record.append(len(_record))
    return x
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "its_package.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    monkeypatch.setattr(files, "_PACKAGES", (*files._PACKAGES, str(tmp_path / "installed") + "/"))
    files.kind_of_file.cache_clear()
    yield importlib.import_module("its_package")
    del sys.modules["its_package"]
    files.kind_of_file.cache_clear()


def rules(step):
    report = pianola.audit(step, batches=[(torch.ones(4),), (torch.ones(4),), (torch.ones(4, 2),)])
    return [one.rule for one in report.findings if one.severity != "performance"]


def test_a_cache_that_one_run_fills(package):
    assert "PG801" not in rules(lambda x: x * package.scale(x.numel()))


def test_a_record_of_each_call(package):
    assert "PG801" in rules(lambda x: package.noted(x) * 2)


def test_a_cache_of_the_user():
    cache = {}

    def step(x):
        cache.setdefault(x.numel(), 0.5)
        return x * cache[x.numel()]

    assert "PG801" in rules(step)
