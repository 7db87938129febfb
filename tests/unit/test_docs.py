"""The documentation builds without a warning and says what is there: passes, attributes, benchmarks, options of tuning."""

from __future__ import annotations

import ast
import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.compilation.options import CompileOptions
from tools import docs_operators, docs_ops, docs_passes
from tools.bench.__main__ import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SOURCES = [p for folder in ("compiler", "passes", "search", "runtime") for p in (ROOT / folder).resolve().rglob("*.py")]


def section(title: str) -> str:
    """A section of the page of the architecture."""
    return (DOCS / "architecture.md").read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_pages_build_strictly(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--config-file", str(ROOT / "mkdocs.yml"),
               "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "site" / "results" / "zen5-avx512" / "index.html").read_text()
    assert "dense_768x768" in page and 'class="mermaid"' in (tmp_path / "site" / "architecture" / "index.html").read_text()


def test_the_page_of_the_passes_is_what_the_passes_do() -> None:
    assert docs_passes.PAGE.read_text() == docs_passes.page(), "run python -m tools.docs_passes"


def test_the_page_of_the_builders_is_what_their_docstrings_say() -> None:
    assert docs_ops.PAGE.read_text() == docs_ops.page(), "run python -m tools.docs_ops"
    assert not [n for n in ops.__all__ if not getattr(ops, n).__doc__]
    assert sorted(ops.__all__) == list(ops.__all__)


def test_the_page_of_the_operators_is_what_the_tables_hold() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("onnx")
    assert docs_operators.PAGE.read_text() == docs_operators.page(), "run python -m tools.docs_operators"


def test_every_attribute_is_described() -> None:
    """And no attribute that there is not."""
    written = {a for path in SOURCES for a in re.findall(r"""["'](tw\.[a-z_]+)["']""", path.read_text())}
    described = set(re.findall(r"^\| `(tw\.[a-z_]+)` \|", section("Attributes between passes"), re.MULTILINE))
    assert written and described == written


def test_every_public_name_is_described() -> None:
    rows = [line.split("|")[1] for line in section("Public names").splitlines() if line.startswith("| `")]
    described = set(re.findall(r"`tw\.(\w+)`", " ".join(rows)))
    assert described == set(tw.__all__) - {"__version__"}


def test_every_pass_of_the_registry_is_in_a_pipeline_of_the_page() -> None:
    text = (DOCS / "architecture.md").read_text()
    assert not [kind.name for kind in docs_passes.PASSES if kind.name not in text and kind.name != "mlir"]


def test_every_benchmark_is_described() -> None:
    listed = re.findall(r"^\| `([a-z-]+)` \|", (DOCS / "benchmarks.md").read_text(), re.MULTILINE)
    assert list(dict.fromkeys(name for name in listed if name in COMMANDS)) == list(COMMANDS)


def test_options_named_on_the_page_of_tuning_exist() -> None:
    fields = {f.name for f in dataclasses.fields(CompileOptions)}
    assert set(re.findall(r"`([a-z_]+)=", (DOCS / "tuning.md").read_text())) <= fields


def test_links_of_the_repository_s_own_pages_lead_somewhere() -> None:
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        for link in re.findall(r"\]\(([^)#]+)", (ROOT / name).read_text()):
            assert link.startswith("http") or (ROOT / link).exists(), f"{name}: {link}"


def test_every_event_of_the_command_line_is_described_with_its_fields() -> None:
    rows: dict[str, str] = {}
    page = (DOCS / "command-line.md").read_text().partition("## JSON")[2]
    for name, text in re.findall(r"^\| `([a-z_]+)` \|[^|]*\|(.*)\|$", page, re.MULTILINE):
        rows[name] = rows.get(name, "") + text
    found: set[str] = set()
    for path in (ROOT / "tilewright" / "compiler" / "cli").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "event":
                if not node.args or not isinstance(node.args[0], ast.Constant):
                    continue
                name = str(node.args[0].value)
                found.add(name)
                assert [k.arg for k in node.keywords if k.arg and f"`{k.arg}`" not in rows.get(name, "")] == [], name
    assert found == set(rows)
