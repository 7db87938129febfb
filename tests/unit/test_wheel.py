"""The wheel in an environment of its own: beside folders that have the names of our rooms, and under mypy strict."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

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
    venv.create(folder / "venv", with_pip=False)
    (wheel,) = folder.glob("tilewright-*.whl")
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder / "venv"), "platbase": str(folder / "venv")}))
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        packed.extractall(site)
    assert {n.split("/")[0] for n in names if ".dist-info/" not in n} == {"tilewright"}
    assert {"tilewright/py.typed", "tilewright/search/prior/host_matmul.model"} <= set(names)
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
