"""What `import tilewright` loads, what it refuses, and who may import whom."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch_mlir", "llvmlite", "xgboost", "emcee", "scipy", "torch", "onnx", "rich", "typer")


def python(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a script that lies in `cwd`, so that the folder is first on sys.path."""
    script = cwd / "script_under_test.py"
    script.write_text(code)
    return subprocess.run([sys.executable, str(script)], cwd=cwd, env={**os.environ, "PYTHONPATH": str(ROOT)},
                          capture_output=True, text=True, timeout=120)


def test_import_is_lazy(tmp_path: Path) -> None:
    code = f"""
import sys
import tilewright as tw
early = set(sys.modules)
tw.Dim(1, 128), tw.Target.parse("host"), tw.CompileOptions(), tw.errors.ShapeError
late = set(sys.modules)
print([m for m in {HEAVY} if m in late], "numpy" in early)
"""
    done = python(code, tmp_path)
    assert done.stdout.strip() == "[] False", done.stderr


def test_load_needs_no_compiler(tmp_path: Path) -> None:
    done = python(f"import sys, tilewright as tw\ntw.load\nprint([m for m in {HEAVY} if m in sys.modules])", tmp_path)
    assert done.stdout.strip() == "[]", done.stderr


def test_every_public_name_resolves() -> None:
    import tilewright as tw

    for name in tw.__all__:
        assert getattr(tw, name) is not None
    assert set(dir(tw)) == set(tw.__all__)
    with pytest.raises(AttributeError, match=r"no attribute 'Compile'.*compile"):
        _ = tw.Compile


def test_import_contracts_hold() -> None:
    """In a process of its own: import-linter sets up logging, which silences the loggers that are there."""
    pytest.importorskip("importlinter")
    code = "import sys\nfrom importlinter.cli import lint_imports\nsys.exit(lint_imports(no_cache=True))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_only_one_module_names_the_bindings() -> None:
    naming = re.compile(r"^\s*(?:from|import)\s+torch_mlir\b", re.MULTILINE)
    files = [p for p in (ROOT / "tilewright").rglob("*.py") if naming.search(p.read_text())]
    assert [str(p.relative_to(ROOT)) for p in files] == ["tilewright/passes/mlir.py"]


def test_readme_lists_every_knob() -> None:
    from tilewright.runtime import knobs

    row = re.compile(r"^\| `(TILEWRIGHT_\w+)` \| (.*?) \| (.*?) \| (.*?) \|$", re.MULTILINE)
    rows = row.findall((ROOT / "README.md").read_text())
    assert rows == [tuple(knob) for knob in knobs.table()]
