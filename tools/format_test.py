"""The format check finds what is wrong, and does not pass because it could not look."""

import format
import pytest


@pytest.fixture
def tree(tmp_path, monkeypatch):
    (tmp_path / ".clang-format").write_text((format.ROOT / ".clang-format").read_text())
    (tmp_path / "pianola").mkdir()
    (tmp_path / "pianola" / "good.cpp").write_text("int f() { return 1; }\n")
    monkeypatch.setattr(format, "ROOT", tmp_path)
    return tmp_path / "pianola"


def test_a_formatted_tree_passes(tree):
    assert format.main(["--check"]) == 0


def test_an_unformatted_file_is_named(tree, capsys):
    (tree / "bad.hpp").write_text("int  g( );\n")
    assert format.main(["--check"]) == 1
    assert "pianola/bad.hpp: not formatted\n1 of 2 files are formatted; run `make format`" in capsys.readouterr().out


def test_formatting_repairs_it(tree):
    (tree / "bad.hpp").write_text("int  g( );\n")
    assert format.main([]) == 0
    assert format.main(["--check"]) == 0


def test_a_missing_formatter_fails(tree, monkeypatch, capsys):
    monkeypatch.setenv("PATH", "/nonexistent")
    assert format.main(["--check"]) == 1
    assert "apt-get install clang-format-14" in capsys.readouterr().err
