"""The wheels in environments of their own: beside folders that have the names of our rooms, under mypy strict, and bare."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler.builder.local_builder import LocalBuilder
from tools import runtime_wheel

ROOT = Path(__file__).resolve().parents[2]
USER = '''
import numpy as np
import runtime
import search.helper
import tilewright as tw

MODEL = """
func.func @main(%x: tensor<?x4xf32> {tw.dims = ["T", 4]}, %y: tensor<?x4xf32> {tw.dims = ["T", 4]}) -> tensor<?x4xf32> {
  %sum = linalg.add ins(%x, %y : tensor<?x4xf32>, tensor<?x4xf32>) outs(%x : tensor<?x4xf32>) -> tensor<?x4xf32>
  return %sum : tensor<?x4xf32>
}
"""


def main() -> None:
    options = tw.CompileOptions(threads=1)
    fn = tw.compile(MODEL, {"T": tw.Dim(1, 8)}, options=options)
    x = np.ones((3, 4), np.float32)
    assert fn(x, x).sum() == 24
    try:
        fn(x, x[:2])
    except tw.errors.ShapeError as error:
        print(type(error).__name__)
    print(search.helper.NAME, runtime.NAME, tw.__version__, fn.dims["T"])


if __name__ == "__main__":
    main()
'''


def fresh(folder: Path) -> Path:
    """A virtual environment with nothing in it; its site-packages."""
    venv.create(folder, with_pip=False)
    return Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment with the wheel; what the wheel needs comes from this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(ROOT / "tilewright", source / "tilewright", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), str(source)]
    subprocess.run(command, check=True, timeout=300)
    (wheel,) = folder.glob("tilewright-*.whl")
    site = fresh(folder / "venv")
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        packed.extractall(site)
    assert {n.split("/")[0] for n in names if ".dist-info/" not in n} == {"tilewright"}
    data = ("py.typed", "search/prior/host_matmul.model", "runtime/export/library.c", "runtime/export/library.h")
    assert {f"tilewright/{name}" for name in data} <= set(names)
    assert re.fullmatch(r"tilewright-[\d.]+-py3-none-manylinux_2_\d+_x86_64\.whl", wheel.name)
    (site / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "venv" / "bin" / "python"


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """A user's script beside a folder `search` and a file `runtime.py` of the user's own."""
    for room in ("search", "compiler", "passes"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text("")
    (tmp_path / "search" / "helper.py").write_text('NAME = "my search"\n')
    (tmp_path / "runtime.py").write_text('NAME = "my runtime"\n')
    (tmp_path / "script.py").write_text(USER)
    return tmp_path


def test_beside_folders_of_the_same_names(installed: Path, user: Path) -> None:
    done = subprocess.run([str(installed), "script.py"], cwd=user, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == "ShapeError"
    assert done.stdout.split("\n")[1].startswith("my search my runtime")


def test_a_script_is_typed(installed: Path, user: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(installed), "--cache-dir",
               str(user / "cache"), "script.py"]
    done = subprocess.run(command, cwd=user, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = (user / "script.py").read_text().replace("threads=1", 'threads="many"')
    (user / "script.py").write_text(wrong)
    done = subprocess.run(command, cwd=user, capture_output=True, text=True, timeout=600)
    assert "incompatible type" in done.stdout


def test_module_runs(installed: Path, tmp_path: Path) -> None:
    done = subprocess.run([str(installed), "-m", "tilewright", "--version"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.strip() and not done.returncode
    done = subprocess.run([str(installed), "-m", "tilewright", "compile"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment with tilewright-runtime and what its wheel asks for: numpy and msgspec."""
    folder = tmp_path_factory.mktemp("runtime")
    site = fresh(folder / "venv")
    wheel = runtime_wheel.build(folder, ["--no-build-isolation"])
    assert re.fullmatch(r"tilewright_runtime-[\d.]+-py3-none-manylinux_2_\d+_x86_64\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    needed = [r for r in importlib.metadata.Distribution.at(next(site.glob("tilewright_runtime-*.dist-info"))).requires or ()
              if "extra ==" not in r]
    assert [re.split("[<>=]", r)[0] for r in needed] == ["msgspec", "numpy"]
    for name in ("msgspec", "numpy"):
        distribution = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}:
            (site / top).symlink_to(Path(str(distribution.locate_file(top))))
    return folder / "venv" / "bin" / "python"


DENSE = """
func.func @main(%x: tensor<?x8xf32> {tw.dims = ["T", 8]}, %w: tensor<8x5xf32>, %bias: tensor<?x5xf32>) -> tensor<?x5xf32> {
  %y = linalg.matmul ins(%x, %w : tensor<?x8xf32>, tensor<8x5xf32>) outs(%bias : tensor<?x5xf32>) -> tensor<?x5xf32>
  return %y : tensor<?x5xf32>
}
"""
BARE = """
import sys
import numpy as np
import tilewright as tw
from tilewright.runtime.tensor import DType

held = np.load("arrays.npz")
fn = tw.load("model.tw")
assert np.array_equal(fn(held["x"], held["bias"]), held["y"])
assert fn(held["x"], held["bias"], threads=1).shape == (7, 5) and "T=7" in str(fn.explain(T=7))
try:
    fn(held["y"], held["bias"])
except tw.errors.ShapeError as error:
    print(error)
for ask in (lambda: tw.compile, lambda: tw.ops, lambda: tw.CompileOptions):
    try:
        ask()
    except ImportError as error:
        print(error)
assert DType.of("f4") is DType.F32
try:
    DType.BF16.numpy
except tw.errors.DTypeError as error:
    print(error)
print([m for m in sys.modules if m.startswith("tilewright.") and m.split(".")[1] not in ("runtime", "distribution", "version")])
"""


def test_a_saved_model_runs_with_numpy_and_msgspec_alone(bare: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    x, w, bias = (rng.standard_normal(shape).astype("f4") for shape in ((7, 8), (8, 5), (7, 5)))
    options = tw.CompileOptions(builder=LocalBuilder(tw.Target.parse("host")))
    fn = tw.compile(DENSE, {"T": tw.Dim(1, 40)}, options=options, constants={"arg1": w})
    fn.save(tmp_path / "model.tw")
    np.savez(tmp_path / "arrays.npz", x=x, bias=bias, y=fn(x, bias))
    (tmp_path / "script.py").write_text(BARE)
    done = subprocess.run([str(bare), "-E", "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    shape, *asked, narrow, loaded = done.stdout.splitlines()
    assert "wanted extent 8" in shape and loaded == "[]" and narrow == "NumPy has no bf16 of its own: pip install ml_dtypes"
    assert asked == [f"tilewright.{name} needs the compiler, and only tilewright-runtime is installed: pip install tilewright"
                     for name in ("compile", "ops", "CompileOptions")]
    for package in ("scipy", "llvmlite", "torch_mlir", "ml_dtypes"):
        assert subprocess.run([str(bare), "-E", "-c", f"import {package}"], capture_output=True).returncode


def test_the_command_needs_the_compiler(bare: Path, tmp_path: Path) -> None:
    done = subprocess.run([str(bare), "-E", "-m", "tilewright", "targets"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        1, "error: the command tilewright needs the compiler, and only tilewright-runtime is installed: pip install tilewright\n")


def test_both_wheels_hold_the_same_files(installed: Path, bare: Path) -> None:
    """So that it does not matter which of them is installed last."""
    whole, part = (next(p.parent.parent.glob("lib/python*/site-packages")) / "tilewright" for p in (installed, bare))
    files = [p.relative_to(part) for p in part.rglob("*") if p.is_file() and p.suffix != ".pyc"]
    assert len(files) > 100 and all((whole / file).read_bytes() == (part / file).read_bytes() for file in files)
