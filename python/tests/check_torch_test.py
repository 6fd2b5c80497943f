"""Another torch than the one that Pianola was built for is refused in words, before anything of Pianola is loaded."""

import importlib.util
import sys
from pathlib import Path

import pytest

# From its file: the package itself would load torch and the extension module.
FILE = Path(__file__).resolve().parents[1] / "pianola" / "_check_torch.py"
spec = importlib.util.spec_from_file_location("_check_torch", FILE)
check_torch = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_torch)

BUILT = check_torch.Build("2.11.0", "13.0", True, "3.11")
HERE = BUILT._replace(torch="2.11.1+cu130", where="/site/torch")
AGAIN = ("build Pianola again: pip install --no-build-isolation --force-reinstall --no-deps "
         "<Pianola's source folder>")


def test_the_same_minor_version_and_cuda_major_will_do():
    assert check_torch.mismatch(BUILT, HERE) is None
    assert check_torch.mismatch(BUILT, HERE._replace(cuda="13.2")) is None


@pytest.mark.parametrize(("changed", "message"), [
    ({"torch": "2.12.0a0+git1234", "cuda": "13.1"},
     "pianola was built for torch 2.11 with CUDA 13.0, but torch 2.12.0a0 with CUDA 13.1 is installed\n"
     "  where: /site/torch\n"
     f"  fix:   pip install 'torch==2.11.*', or {AGAIN}"),
    ({"torch": "2.1.1", "cuda": ""},
     "pianola was built for torch 2.11 with CUDA 13.0, but torch 2.1.1 without CUDA is installed\n"
     "  where: /site/torch\n"
     f"  fix:   pip install 'torch==2.11.*', or {AGAIN}"),
    ({"cuda": "12.8"},
     "pianola was built for CUDA 13.0, but torch 2.11.1 with CUDA 12.8 is installed\n"
     "  where: /site/torch\n"
     f"  fix:   install a torch 2.11 with CUDA 13, or {AGAIN}"),
    ({"cuda": ""},
     "pianola was built for CUDA 13.0, but torch 2.11.1 without CUDA is installed\n"
     "  where: /site/torch\n"
     f"  fix:   install a torch 2.11 with CUDA 13, or {AGAIN}"),
    ({"cxx11_abi": False},
     "pianola was built for the C++ ABI _GLIBCXX_USE_CXX11_ABI=1, but torch 2.11.1+cu130 has 0\n"
     "  where: /site/torch\n"
     f"  fix:   {AGAIN}"),
    ({"python": "3.12"},
     "pianola was built for Python 3.11, but this is Python 3.12\n"
     f"  where: {sys.executable}\n"
     f"  fix:   use Python 3.11, or {AGAIN}"),
])
def test_a_difference_that_matters_is_named(changed, message):
    assert check_torch.mismatch(BUILT, HERE._replace(**changed)) == message


def test_without_the_cuda_backend_any_cuda_will_do():
    assert check_torch.mismatch(BUILT._replace(cuda=""), HERE) is None


def test_the_installed_torch_is_compared(monkeypatch):
    monkeypatch.setattr(check_torch, "installed", lambda: HERE._replace(torch="2.12.0"))
    with pytest.raises(ImportError, match="built for torch 2.11 with CUDA 13.0, but torch 2.12.0 with CUDA 13.0"):
        check_torch.check(BUILT)
    check_torch.check(BUILT._replace(torch="2.12.3"))


def test_without_torch_its_version_is_named(monkeypatch):
    monkeypatch.setattr(check_torch.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError) as refused:
        check_torch.check(BUILT)
    assert str(refused.value) == ("pianola needs torch 2.11, but there is no torch\n"
                                  f"  where: {sys.executable}\n"
                                  "  fix:   pip install 'torch==2.11.*'")


def test_a_torch_that_does_not_load_says_why(monkeypatch):
    def broken():
        raise OSError("libcudart.so.13: cannot open shared object file")

    monkeypatch.setattr(check_torch, "installed", broken)
    with pytest.raises(ImportError, match=r"torch cannot be imported: libcudart.so.13: cannot open") as refused:
        check_torch.check(BUILT)
    assert isinstance(refused.value.__cause__, OSError)


def test_what_cmake_wrote_is_understood():
    values = {"TORCH": "2.11.0", "CUDA": "", "CXX11_ABI": True, "PYTHON": "3.11", "VERSION": "0.1.0"}
    assert check_torch.built_for(values) == BUILT._replace(cuda="")


def test_what_is_installed_is_read_from_torch():
    torch = pytest.importorskip("torch")
    found = check_torch.installed()
    assert (found.torch, found.cuda) == (torch.__version__, torch.version.cuda or "")
    assert found.where == str(Path(torch.__file__).parent)
