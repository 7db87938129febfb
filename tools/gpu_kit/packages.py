"""The Python packages that the kit brings for a machine without network: unpacked wheels, used where the machine lacks them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

PYTHON = "3.12"
SITE = "site"
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_24_x86_64", "manylinux_2_17_x86_64",
              "manylinux2014_x86_64")
# group -> its wheels, whether pip takes what they need too, and the modules that say whether a machine has it
GROUPS: dict[str, tuple[tuple[str, ...], bool, tuple[str, ...]]] = {
    "cuda": (("cuda-bindings", "cuda-core", "cuda-pathfinder"), False, ("cuda.bindings", "cuda.core", "cuda.pathfinder")),
    "msgspec": (("msgspec",), False, ("msgspec",)),
    "emcee": (("emcee",), False, ("emcee",)),
    "platformdirs": (("platformdirs",), False, ("platformdirs",)),
    "ml_dtypes": (("ml_dtypes",), False, ("ml_dtypes",)),
    "typer": (("typer", "pydantic"), True, ("typer", "pydantic", "rich")),
    "xgboost": (("xgboost-cpu",), False, ("xgboost",)),
}
NEEDED = ("numpy", "scipy")  # too large to bring


def download(site: Path) -> None:
    """Fetch the wheels of every group for Linux on x86-64 by pip and unpack them, each group in a folder of its own."""
    for group, (wheels, dependencies, _) in GROUPS.items():
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "pip", "download", "-q", "--only-binary=:all:", "--python-version", PYTHON,
                       "--implementation", "cp", "-d", folder, *(x for p in _PLATFORMS for x in ("--platform", p))]
            subprocess.run([*command, *([] if dependencies else ["--no-deps"]), *map(_pinned, wheels)], check=True)
            for wheel in sorted(Path(folder).glob("*.whl")):
                with zipfile.ZipFile(wheel) as packed:
                    packed.extractall(site / group)


def missing(site: Path) -> Iterator[Path]:
    """The folders of the groups that this interpreter lacks."""
    for group, (_, _, modules) in GROUPS.items():
        if not all(map(_importable, modules)) and (site / group).is_dir():
            yield site / group


def prepare(root: Path) -> None:
    """Start this program again with what the interpreter lacks on its path; nothing where it lacks nothing."""
    found = [str(p) for p in missing(root / SITE) if str(p) not in sys.path]
    if found:
        path = os.pathsep.join([str(root), *found, *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-P", "-m", "tools.gpu_kit", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONPATH": path})
    for module in NEEDED:
        if not _importable(module):
            print(f"{module} is not installed for {sys.executable}: what needs it will say so", file=sys.stderr)


def _pinned(wheel: str) -> str:
    """The version that is installed here, if it is."""
    try:
        return f"{wheel}=={importlib.metadata.version(wheel)}"
    except importlib.metadata.PackageNotFoundError:
        return wheel


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False
