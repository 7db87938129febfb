"""Builds the wheel tilewright-runtime: of the same source, what loads and runs saved models.

    python -m tools.runtime_wheel FOLDER      writes tilewright_runtime-VERSION-py3-none-PLATFORM.whl into FOLDER

Every file in it is also in the wheel tilewright, byte by byte.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FILES = ("__init__.py", "__main__.py", "distribution.py", "py.typed", "version.py")
NEEDED = ("msgspec", "numpy")
# Extra -> package: what some models or machines need besides.
EXTRAS = {"cuda": "cuda-python", "llvm": "llvmlite", "bf16": "ml_dtypes", "sign": "cryptography"}
README = """`tilewright-runtime` loads and runs models that [Tilewright](https://pypi.org/project/tilewright/) compiled and saved:

    import tilewright as tw
    fn = tw.load("model.tw")

It needs numpy and msgspec. Extras: `bf16` for models with bf16 or 8-bit floats, `cuda` for GPUs, `llvm` to compile a model anew
for a CPU that lacks instructions of the one it was compiled for, `sign` to load only what a key signed. To compile models:
`pip install tilewright`, which holds all of this too.
"""


def project_text() -> str:
    """The pyproject.toml of the runtime, after the checkout's."""
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, data = whole["project"], whole["tool"]["setuptools"]["package-data"]
    named = [*project["dependencies"], *project["optional-dependencies"]["sign"]]
    requirement = {re.split(r"[<>=]", text)[0]: text for text in named}
    facts = {
        "name": "tilewright-runtime",
        "description": "Loads and runs models that Tilewright compiled",
        "readme": {"text": README, "content-type": "text/markdown"},
        **{key: project[key] for key in ("version", "requires-python", "license", "license-files", "classifiers")},
        "dependencies": [requirement[name] for name in NEEDED],
        "optional-dependencies": {extra: [requirement[name]] for extra, name in EXTRAS.items()},
    }
    runtime = {name: files for name, files in data.items() if name == "tilewright" or name.startswith("tilewright.runtime")}
    sections: dict[str, dict[str, Any]] = {
        "build-system": whole["build-system"],
        "project": facts,
        "tool.distutils.bdist_wheel": whole["tool"]["distutils"]["bdist_wheel"],
        "tool.setuptools.packages.find": {"include": ["tilewright*"]},
        "tool.setuptools.package-data": runtime,
    }
    return "\n".join(f"[{name}]\n" + "".join(f"{_key(k)} = {_toml(v)}\n" for k, v in section.items())
                     for name, section in sections.items())


def build(folder: Path, arguments: Sequence[str] = ()) -> Path:
    """Build the wheel into a folder with pip, which takes the arguments too; its path."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as text:
        source = Path(text)
        (source / "tilewright").mkdir()
        for name in FILES:
            shutil.copy(ROOT / "tilewright" / name, source / "tilewright")
        shutil.copytree(ROOT / "tilewright" / "runtime", source / "tilewright" / "runtime",
                        ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "LICENSE", source)
        (source / "pyproject.toml").write_text(project_text())
        made = source / "made"
        command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(made), *arguments, str(source)]
        subprocess.run(command, check=True)
        (wheel,) = made.glob("*.whl")
        return Path(shutil.copy(wheel, folder))


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name) else json.dumps(name)


def _toml(value: Any) -> str:
    """Texts, lists and tables of them as TOML, in which these are written as in JSON but for the signs of tables."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def main() -> int:
    """Run one command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    print(build(parser.parse_args().folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
