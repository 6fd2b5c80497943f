"""The check finds a file that leans on others of its unit."""

import json

import compile_alone
import pytest


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Three sources as a build tree names them, of which one wants what another one includes."""
    sources = {"good.cpp": "#include <string>\nstd::string f();\n", "bad.cpp": "std::string g();\n", "other.cpp": "int h();\n"}
    for name, text in sources.items():
        (tmp_path / name).write_text(text)
    entries = [{"directory": str(tmp_path), "command": f"g++ -std=c++20 -o {name}.o -c {name}", "file": str(tmp_path / name)}
               for name in sources]
    file = tmp_path / "compile_commands.json"
    file.write_text(json.dumps(entries))
    monkeypatch.setattr(compile_alone, "ROOT", tmp_path)
    monkeypatch.setattr(compile_alone, "commands", lambda read=compile_alone.commands: read(file))
    return tmp_path


def test_what_leans_on_another_file_is_named(tree, capsys):
    assert compile_alone.main([]) == 1
    printed = capsys.readouterr().out
    assert "bad.cpp: does not compile alone" in printed and "2 of 3 files compile alone" in printed
    assert not list(tree.glob("*.o"))


def test_files_can_be_chosen(tree, capsys):
    assert compile_alone.main([str(tree / "good.cpp"), str(tree / "other.cpp")]) == 0
    assert "2 of 2 files compile alone" in capsys.readouterr().out


def test_a_file_that_no_command_compiles_is_named(tree, capsys):
    assert compile_alone.main([str(tree / "missing.cpp")]) == 1
    assert "no command compiles" in capsys.readouterr().err


def test_changed_files_are_those_of_git(tree, capsys):
    def git(*words):
        compile_alone.subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tree, check=True, capture_output=True)

    git("init")
    git("add", "good.cpp", "bad.cpp")
    git("commit", "-m", "first")
    assert compile_alone.main(["--since", "HEAD"]) == 0
    assert "1 of 1 files compile alone" in capsys.readouterr().out


def test_headers_of_another_cuda_take_the_place_of_torchs(tmp_path):
    for name in ("cuda_runtime", "cublas"):
        (tmp_path / "nvidia" / name / "include").mkdir(parents=True)
    with pytest.raises(SystemExit, match="has no headers of CUDA"):
        compile_alone.with_cuda([], tmp_path)
    (tmp_path / "nvidia/cuda_runtime/include/cuda_runtime_api.h").touch()
    words = ["g++", "-isystem", "/v/nvidia/cu13/include", "-isystem", "/v/nvidia/nccl/include", "-isystem", "/v/nvidia/cu13/include/cccl", "x.cpp"]
    theirs = [str(tmp_path / "nvidia" / name / "include") for name in ("cublas", "cuda_runtime")]
    assert compile_alone.with_cuda(words, tmp_path) == [
        "g++", "-isystem", theirs[0], "-isystem", theirs[1], "-isystem", "/v/nvidia/nccl/include", "x.cpp"]  # fmt: skip


def test_what_includes_cuda_is_known_by_its_words(tmp_path):
    (tmp_path / "plain.cpp").write_text("#include <string>\n")
    (tmp_path / "own.cpp").write_text("#include <c10/cuda/CUDAStream.h>\n")
    (tmp_path / "by_header.cpp").write_text("#include <own.hpp>\n")
    (tmp_path / "by_header.hpp").write_text("#include <cuda_runtime_api.h>\n")
    assert [compile_alone.includes_cuda(tmp_path / name) for name in ("plain.cpp", "own.cpp", "by_header.cpp")] == [False, True, True]
