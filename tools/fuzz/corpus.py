"""What is mutated: the texts of the lit tests, of the examples and of the tests' data, and random programs of all operators."""

from __future__ import annotations

import importlib
import random
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FOLDERS = ("tests/lit", "tests/data", "examples")
_LONGEST = 4000  # characters; what is longer is drawn a tenth as often
_COMMENT = re.compile(r"^//.*\n", re.MULTILINE)
_FUNCTION = re.compile(r"func\.func @(\w+)")


def texts(programs: int = 120) -> list[str]:
    """Texts in the order of their files, and then so many random programs."""
    files = [path for folder in _FOLDERS for path in sorted((ROOT / folder).rglob("*.mlir"))]
    return [_COMMENT.sub("", path.read_text()) for path in files] + [_program(seed) for seed in range(programs)]


def weight(text: str) -> float:
    """How often a text is drawn: models on tensors are, and large ones less."""
    return (1.0 if len(text) < _LONGEST else 0.1) * (1.0 if "memref" not in text and "llvm." not in text else 0.2)


def function(text: str, rng: random.Random) -> str | None:
    """One of the text's functions, where it has several."""
    names = _FUNCTION.findall(text)
    return rng.choice(names) if len(names) > 1 else None


def _program(seed: int) -> str:
    if str(ROOT / "tests") not in sys.path:
        sys.path.insert(0, str(ROOT / "tests"))
    programs, operators = (importlib.import_module(f"e2e.random_{name}") for name in ("programs", "operators"))
    return str(programs.draw(random.Random(seed), operators.OPERATORS, longest=3).text)
