"""The lowest versions of what the package needs: as constraints for pip, and tried.

    python -m tools.lowest --write          writes tools/lowest.txt after pyproject.toml
    python -m tools.lowest --try FOLDER     installs the checkout with them into an environment in FOLDER and runs some tests
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "tools" / "lowest.txt"
_REQUIREMENT = re.compile(r"(?P<name>[\w-]+)(?:>=|==)(?P<version>[\w.]+)(?:,<[\w.]+)?")
# What each of the packages is used for: arrays, calls, artifacts, kernels, cache and locks, command line, cost model, covers,
# posterior of the tuner, CUDA.
TESTS = (
    "tests/unit/test_ops.py", "tests/unit/test_call_path.py", "tests/unit/test_artifact.py", "tests/unit/test_cache.py",
    "tests/unit/test_cli.py", "tests/unit/test_constants.py", "tests/unit/test_fp8.py", "tests/e2e/test_calls.py",
    "tests/e2e/test_cli_run.py", "tests/e2e/test_tune.py", "tests/search/test_belief.py", "tests/search/test_cost_model.py",
    "tests/search/test_cover.py", "tests/search/test_prior.py", "tests/search/test_time_fit.py", "tests/cuda_fake",
)  # fmt: skip
TOOLS = ("filecheck", "hypothesis", "pytest")  # of the extra `test`; others of it need later versions of what is constrained


def constraints() -> str:
    """A line `name==lowest version` for each dependency.

    Raises:
        ValueError: a dependency without a lower bound.
    """
    lines = []
    for text in _project()["dependencies"]:
        found = _REQUIREMENT.fullmatch(text)
        if found is None:
            raise ValueError(f"dependency {text!r}: wanted NAME>=VERSION, with ,<VERSION at the end if need be, or NAME==VERSION")
        lines.append(f"{found['name']}=={found['version']}")
    return "\n".join(lines) + "\n"


def try_them(folder: Path) -> int:
    """Install into a fresh environment and run the tests; the exit code of the first step that fails, else 0."""
    python = folder / "bin" / "python"
    tools = [text for text in _project()["optional-dependencies"]["test"] if text.partition(">=")[0] in TOOLS]
    steps = [[sys.executable, "-m", "venv", "--clear", str(folder)],
             [str(python), "-m", "pip", "install", "-q", "-c", str(FILE), "-e", str(ROOT), *tools],
             [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]]  # fmt: skip
    for step in steps:
        print("==", " ".join(step), flush=True)
        code = subprocess.run(step, cwd=ROOT, env={**os.environ, "TILEWRIGHT_CACHE_DIR": str(folder / "cache")}).returncode
        if code:
            return code
    return 0


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


def main() -> int:
    """Run one command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("--write", action="store_true")
    choice.add_argument("--try", dest="folder", type=Path)
    chosen = parser.parse_args()
    if chosen.folder:
        return try_them(chosen.folder)
    FILE.write_text(constraints())
    return 0


if __name__ == "__main__":
    sys.exit(main())
